"""Who writes, and on what machine: process identities that outlive a reused process number."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import socket
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

LIBRARIES = (
    "palestra", "numpy", "scipy", "numba", "gymnasium", "pettingzoo", "pyarrow", "safetensors",
    "torch", "stable-baselines3", "sb3-contrib", "mujoco", "ray",
)  # fmt: skip


@dataclass(frozen=True)
class Process:
    """A process, told apart from a later one that was given the same number.

    `boot` changes when the machine restarts, `start` is the process's own starting time; the host's
    name is kept because a process number means nothing elsewhere.
    """

    host: str
    boot: str
    pid: int
    start: str

    @classmethod
    def current(cls) -> Process:
        """This process."""
        pid = os.getpid()
        if _CURRENT.get("pid") != pid:  # asked once, and again in a forked child
            host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:64] or "localhost"
            started = _start_of(pid) or "0"
            _CURRENT.update(pid=pid, process=cls(host, _boot(), pid, started))
        process = _CURRENT["process"]
        assert isinstance(process, cls)
        return process

    @property
    def token(self) -> str:
        """Host, boot, number and start as text that fits into a file name."""
        return f"{self.host}~{self.boot}~{self.pid}~{self.start}"

    @classmethod
    def parse(cls, token: str) -> Process | None:
        """The process that a token, or a name that begins with one, speaks of; None if none."""
        parts = token.split("~")
        if len(parts) < 4 or not parts[2].isdecimal():
            return None
        return cls(parts[0], parts[1], int(parts[2]), parts[3])

    def dead(self) -> bool:
        """True if it certainly no longer runs. A process on another host is given the benefit."""
        here = Process.current()
        if self.host != here.host:
            return False
        if self.boot != here.boot:
            return True
        return _start_of(self.pid) != self.start


_CURRENT: dict[str, object] = {}


def _boot() -> str:
    """Eight letters that change when the machine restarts; "0" where the system does not tell."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    return "0"


def _start_of(pid: int) -> str | None:
    """When process `pid` began, as an opaque text; None if no such process runs here."""
    if sys.platform == "win32":
        return _start_on_windows(pid)
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        if Path("/proc/self/stat").exists():
            return None
        shown = subprocess.run(
            ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
        )
        return re.sub(r"\W+", "-", shown.stdout.strip()) or None
    state, *fields = stat.rpartition(")")[2].split()  # the command's name may hold anything
    return None if state in "ZX" else fields[18]  # a zombie writes nothing any more


def _start_on_windows(pid: int) -> str | None:
    import ctypes

    kernel = ctypes.windll.kernel32  # type: ignore[attr-defined,unused-ignore]
    handle = kernel.OpenProcess(0x1000, False, pid)  # PROCESS_QUERY_LIMITED_INFORMATION
    if not handle:
        return None
    created, exited, system, user = (ctypes.c_ulonglong() for _ in range(4))
    times = [ctypes.byref(x) for x in (created, exited, system, user)]
    known = kernel.GetProcessTimes(handle, *times)
    kernel.CloseHandle(handle)
    return str(created.value) if known and not exited.value else None


def machine() -> dict[str, Any]:
    """What a reader needs to judge why two machines differ in the last bit: interpreter, libraries,
    libc, processor and its vector instructions, host.
    """
    model, flags = platform.processor() or platform.machine(), []
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                model = value.strip()
            elif key.strip() in ("flags", "Features"):
                flags = sorted(f for f in value.split() if re.match(r"avx|fma|sse4|asimd|sve", f))
                break
    libraries = {}
    for name in LIBRARIES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            libraries[name] = metadata.version(name)
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "libc": " ".join(platform.libc_ver()).strip(),
        "cpu": model,
        "cpu_flags": flags,
        "host": socket.gethostname(),
        "libraries": libraries,
    }
