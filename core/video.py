"""Videos, written frame by frame to ffmpeg: memory does not grow with their length.

    with Video("episode.mp4", fps=30) as video:
        for frame in frames:  # uint8 (H, W, 3)
            video.add(frame)

ffmpeg writes a hidden file beside the one that was asked for (`.episode-....mp4`), in fragments
that play one by one. When it is closed, the file is made from it and takes its name: `.mp4` is
H.264 that every browser plays, `.gif` has one palette for all frames. A process that ends without
closing still does that on its way out; after a kill the hidden file is left, and plays up to the
last fragment. Needs the extra `video`, whose wheel brings ffmpeg.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np

from .disk import disk, explained
from .spaces import Array

SUFFIXES = (".mp4", ".gif")
LARGEST = 8192  # pixels along a side
MOST_FPS = 1000
GIF_FPS = 50
"""A GIF counts time in 1/100 s, and browsers play one of less than 2/100 s a frame slowly."""

_COLOURS = (
    "scale=out_color_matrix=bt709:out_range=tv,format=yuv420p,"
    "setparams=range=tv:colorspace=bt709:color_primaries=bt709:color_trc=bt709"
)
_H264 = ("-c:v", "libx264", "-preset", "veryfast", "-crf", "20")
_LOSSLESS = ("-c:v", "libx264rgb", "-qp", "0", "-preset", "ultrafast")
_FRAGMENTS = ("-movflags", "+frag_keyframe+empty_moov+default_base_moof", "-flush_packets", "1")


class VideoFailed(OSError):
    """ffmpeg did not write a video; the message is what it said."""


class Video:
    """A file that grows by one frame at a time; use it as a context manager, or `close` it.

    Args:
        path: ends in `.mp4` or `.gif`; a file of this name is replaced.
        fps: frames a second, at most 1000. A GIF of more than 50 leaves frames out to keep the
            pace.
        width: of the pictures in the file, in pixels; None: that of the frames.

    Attributes:
        path: the file.
        fps: frames a second.
        frames: how many were added.

    Raises:
        ValueError: another suffix, an `fps` that is not above 0 and at most 1000, or a `width`
            that is none.
        FileNotFoundError: there is no such folder.
        ImportError: the extra `video` is not installed.
    """

    def __init__(self, path: str | os.PathLike[str], fps: float, width: int | None = None) -> None:
        self.path = Path(path)
        if self.path.suffix.lower() not in SUFFIXES:
            raise ValueError(f"path: {self.path}: suffix must be one of {', '.join(SUFFIXES)}")
        if not (math.isfinite(fps) and 0 < fps <= MOST_FPS):
            raise ValueError(f"fps: got {fps}, allowed above 0 and at most {MOST_FPS}")
        if width is not None and not (isinstance(width, int) and 16 <= width <= LARGEST):
            raise ValueError(f"width: got {width!r}, allowed 16 to {LARGEST} pixels")
        if not self.path.parent.is_dir():
            raise FileNotFoundError(f"path: there is no folder {self.path.parent}")
        self.fps, self.width = float(fps), width
        self.frames = 0
        self._ffmpeg = _find_ffmpeg()
        self._shape: tuple[int, ...] = ()
        self._stream: _Stream | None = None
        self._finish: weakref.finalize[Any, Any] | None = None

    def add(self, frame: Array) -> None:
        """Write one frame.

        Args:
            frame: uint8 (H, W, 3), all of one size. An odd side grows by a copy of its last row or
                column, because H.264 has even ones.

        Raises:
            ValueError: no such frame, or one of another size; the file goes on without it.
            VideoFailed: ffmpeg has ended; the message has what it said.
        """
        frame = checked_frame(frame)
        if self._stream is None:
            self._shape = frame.shape
            place = self.path.absolute()  # the process may change its folder
            self._stream = _Stream(self._ffmpeg, place, self._shape, self.fps, self.width)
            # at the latest when Python ends, or nobody holds the video any more
            self._finish = weakref.finalize(self, self._stream.finish)
        if self._finish is None or not self._finish.alive:
            raise ValueError(f"add: {self.path} is closed")
        if frame.shape != self._shape:
            raise ValueError(f"frame: got {frame.shape}, the first one had {self._shape}")
        try:
            self._stream.write(frame)
        except VideoFailed:
            self._finish.detach()
            raise
        self.frames += 1

    def close(self) -> None:
        """Finish the file and give it its name; a second call does nothing.

        Raises:
            VideoFailed: ffmpeg could not finish it.
        """
        if self._finish is not None:
            self._finish()

    def __enter__(self) -> Video:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except VideoFailed:
            if problem is None:  # else that one says more
                raise


class _Stream:
    """The process that encodes, and the files it writes. Holds no reference to its writer."""

    def __init__(
        self, program: str, path: Path, shape: Sequence[int], fps: float, width: int | None
    ) -> None:
        self.program, self.path, self.fps = program, path, fps
        high, wide, _ = shape
        self.padding = ((0, high % 2), (0, wide % 2), (0, 0))
        size = f"{wide + wide % 2}x{high + high % 2}"
        scale = "null" if width is None else f"scale={width + width % 2}:-2:flags=area"
        self.hidden = path.with_name(f".{path.stem}-{secrets.token_hex(4)}.mp4")
        self.said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        lossless = path.suffix.lower() == ".gif"
        filters, codec = (scale, _LOSSLESS) if lossless else (f"{scale},{_COLOURS}", _H264)
        self.process = subprocess.Popen(
            [
                *(program, "-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "rgb24"),
                *("-s", size, "-r", f"{fps:g}", "-i", "-", "-vf", filters, *codec),
                *("-g", str(max(1, round(fps))), *_FRAGMENTS, str(self.hidden)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self.said,
            **_own_group(),
        )

    def write(self, frame: Array) -> None:
        if self.padding[0][1] or self.padding[1][1]:
            frame = np.pad(frame, self.padding, mode="edge")
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(np.ascontiguousarray(frame).data)
        except OSError:  # it has ended, and says why
            self._wait()
            raise self._failure(self.process.returncode) from None

    def finish(self) -> None:
        """Let ffmpeg end, and make the file from what it wrote."""
        try:
            self._wait()
            if self.process.returncode:
                raise self._failure(self.process.returncode)
            whole = self.hidden.with_name(f"{self.hidden.stem}~{self.path.suffix.lower()}")
            try:
                if whole.suffix == ".gif":
                    self._make_gif(whole)
                else:
                    copied = ("-c", "copy", "-movflags", "+faststart", str(whole))
                    self._run("-i", str(self.hidden), *copied)
                with explained(self.path):
                    _flush(whole)
                    disk.rename(whole, self.path)
                    disk.fsync_folder(self.path.parent)
            finally:
                whole.unlink(missing_ok=True)
            self.hidden.unlink(missing_ok=True)
        finally:
            self.said.close()

    def _make_gif(self, whole: Path) -> None:
        """In two passes over the file: one palette of all frames, in constant memory."""
        pace = f"fps={min(self.fps, GIF_FPS):g}"
        paint = f"{pace}[x];[x][1:v]paletteuse=dither=none:diff_mode=rectangle"
        with tempfile.TemporaryDirectory() as folder:  # ffmpeg takes a % in a picture's path apart
            palette = str(Path(folder) / "palette.png")
            self._run("-i", str(self.hidden), "-vf", f"{pace},palettegen", palette)
            both = ("-i", str(self.hidden), "-i", palette)
            self._run(*both, "-filter_complex", paint, "-loop", "0", str(whole))

    def _run(self, *arguments: str) -> None:
        command = [self.program, "-loglevel", "error", "-nostdin", "-y", *arguments]
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self.said,
            check=False,
            **_own_group(),
        )
        if done.returncode:
            raise self._failure(done.returncode)

    def _wait(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):  # what it did not take any more
            self.process.stdin.close()
        self.process.wait()

    def _failure(self, code: int) -> VideoFailed:
        self.said.seek(0)
        lines = self.said.read().decode("utf-8", "replace").split("\n")
        said = "; ".join(dict.fromkeys(line.strip() for line in lines if line.strip()))
        how = f"exit code {code}" if code > 0 else f"signal {_signal_name(-code)}"
        written = self.hidden.stat().st_size if self.hidden.exists() else 0
        left = f". What it had written is in {self.hidden}" if written else ""
        if not written:
            self.hidden.unlink(missing_ok=True)
        return VideoFailed(f"{self.path}: ffmpeg ended with {how}: {said or 'no message'}{left}")


def checked_frame(given: Any) -> Array:
    """A frame; raises ValueError unless it is uint8 (H, W, 3), 1 to 8192 pixels a side."""
    frame: Array = np.asarray(given)
    if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
        raise ValueError(f"frame: got {frame.dtype} {frame.shape}, allowed uint8 (H, W, 3)")
    if not (0 < frame.shape[0] <= LARGEST and 0 < frame.shape[1] <= LARGEST):
        raise ValueError(f"frame: got {frame.shape}, allowed 1 to {LARGEST} pixels a side")
    return frame


def _find_ffmpeg() -> str:
    try:
        from imageio_ffmpeg import get_ffmpeg_exe
    except ImportError:
        raise ImportError(
            "videos need imageio-ffmpeg, which is not installed: pip install 'palestra[video]'"
        ) from None
    return str(get_ffmpeg_exe())


def _own_group() -> dict[str, Any]:
    """Ctrl-C in a terminal goes to a group of processes; ffmpeg is to finish its file."""
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"start_new_session": True}


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0))
    try:
        disk.fsync(descriptor)
    finally:
        disk.close(descriptor)


def _signal_name(number: int) -> str:
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return str(number)
