"""Compiled kernels: one decorator, one cache.

Kernels are serial: parallelism is over blocks of episodes, in processes. They are compiled on
first use and cached on disk. Fast-math is banned, except `reassoc` on a sum inside one row,
because reordered arithmetic would make an episode depend on how it was computed.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numba

F = TypeVar("F", bound=Callable[..., Any])

_compiled_once: dict[str, str] = {}


def kernel(
    function: F | None = None, *, reassociate_sums: bool = False, allocates: bool = True
) -> Any:
    """Compile a plain function with numba: serial, cached, IEEE arithmetic.

    Args:
        function: the function; omit it to use the decorator with arguments.
        reassociate_sums: let LLVM reorder the additions of a sum inside one row, so that it
            vectorises. The only fast-math flag there is.
        allocates: whether the kernel creates arrays. If it does not, numba's memory manager can
            stay out, and each array argument costs about 25 ns less a call.

    Returns:
        The dispatcher; it compiles at the first call with given argument types.

    Raises:
        ValueError: the same Python function is compiled a second time with other flags; numba's
            cache ignores flags (numba#6845), so it would serve the wrong code.
    """

    def compile_later(plain: F) -> F:
        fastmath = {"reassoc"} if reassociate_sums else False
        options = {"fastmath": fastmath, "_nrt": allocates}
        name, flags = f"{plain.__module__}.{plain.__qualname__}", repr(options)
        if _compiled_once.setdefault(name, flags) != flags:
            raise ValueError(f"{name} is compiled twice with different flags; write two functions")
        numba_settings: Any = numba.config
        previous = numba_settings.CACHE_DIR
        numba_settings.CACHE_DIR = str(cache_folder(plain.__module__, plain.__code__.co_filename))
        try:
            # divisions follow IEEE: no hidden branch in a loop. The interpreter's lock is kept:
            # to release and take it again would cost more than many a kernel does.
            decorate: Any = numba.njit
            return decorate(cache=True, error_model="numpy", **options)(plain)  # type: ignore[no-any-return]
        finally:
            numba_settings.CACHE_DIR = previous

    return compile_later if function is None else compile_later(function)


def cache_folder(module: str = "", file: str = __file__) -> Path:
    """Folder of a module's compiled kernels, keyed by what numba's own cache key leaves out.

    That is the flags of the compiler; the name of the module, because a file that is imported
    under one name and loaded as a target under another would find code that refers to the first;
    and the sources beside the file and of this package's streams, because a kernel holds the
    compiled code of the kernels that it calls.
    `NUMBA_CACHE_DIR` names its parent, else `$XDG_CACHE_HOME/palestra` or `~/.cache/palestra`.
    A folder that cannot be written is replaced by a private temporary one, with a warning.
    """
    optimisation = os.environ.get("NUMBA_OPT", "")
    called = (_stamp(Path(file).parent), _stamp(Path(__file__).parent, "streams.py"))
    flags = f"{numba.__version__}|{optimisation}|{sys.version_info[:2]}|{module}|{called}"
    leaf = "kernels-" + hashlib.blake2b(flags.encode(), digest_size=4).hexdigest()
    parent = os.environ.get("NUMBA_CACHE_DIR") or _default_parent()
    return _writable(Path(parent) / leaf)


@cache
def _stamp(folder: Path, pattern: str = "*.py") -> str:
    """Names, sizes and times of source files."""
    files = ((path, path.stat()) for path in sorted(folder.glob(pattern)))
    text = "|".join(f"{path.name}:{s.st_size}:{s.st_mtime_ns}" for path, s in files)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _default_parent() -> str:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "palestra")


_writable_folders: dict[Path, Path] = {}


def _writable(folder: Path) -> Path:
    if folder not in _writable_folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
            _writable_folders[folder] = folder
        except OSError as reason:
            private = Path(tempfile.mkdtemp(prefix="palestra-kernels-"))
            warnings.warn(
                f"kernel cache {folder} cannot be written ({reason.strerror}); compiling into "
                f"{private} for this process. Set NUMBA_CACHE_DIR to a writable folder.",
                RuntimeWarning,
                stacklevel=4,
            )
            _writable_folders[folder] = private
    return _writable_folders[folder]
