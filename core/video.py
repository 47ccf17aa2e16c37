"""Videos, written frame by frame to ffmpeg: memory does not grow with their length.

`.mp4` is H.264 that every browser plays; `.gif` has a palette of its own for each frame, because
one for all would need all frames at once. Needs the extra `video`, whose wheel brings ffmpeg.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import subprocess
import tempfile
import weakref
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

# H.264 in yuv420p has even sizes. The pieces of a fragmented file can be played before it is
# finished, and whatever becomes of this process.
MP4 = (
    "-vf", "{scale}pad=ceil(iw/2)*2:ceil(ih/2)*2:color=white", "-c:v", "libx264",
    "-preset", "veryfast", "-crf", "20", "-pix_fmt", "yuv420p",
    "-movflags", "+frag_keyframe+empty_moov+default_base_moof", "-f", "mp4",
)  # fmt: skip
GIF = (
    "-filter_complex",
    "[0:v]{scale}split[a][b];[a]palettegen=max_colors=64:stats_mode=single[p];"
    "[b][p]paletteuse=new=1:dither=none:diff_mode=rectangle",
    "-loop", "0", "-f", "gif",
)  # fmt: skip
FORMS = {".mp4": MP4, ".gif": GIF}
LARGEST = 8192  # pixels along a side


class Video:
    """A file that grows by one frame at a time; use it as a context manager, or `close` it.

    The frames stand in a hidden file beside it, which takes its name when it is closed, at the
    latest when Python ends. After a kill the hidden file is left, and plays.

    Args:
        path: ends in `.mp4` or `.gif`; a file of this name is replaced.
        fps: frames a second.
        width: of the pictures in the file, in pixels; None: that of the frames.

    Raises:
        ValueError: another suffix, an `fps` that is not from 1 to 100, or a `width` that is none.
        FileNotFoundError: there is no such folder.
        ImportError: the extra `video` is not installed.
    """

    def __init__(self, path: str | os.PathLike[str], fps: float, width: int | None = None) -> None:
        self.path = Path(path)
        if self.path.suffix.lower() not in FORMS:
            raise ValueError(f"path: {self.path}: suffix must be one of {', '.join(FORMS)}")
        if not (math.isfinite(fps) and 1 <= fps <= 100):
            raise ValueError(f"fps: got {fps}, allowed 1 to 100")
        if width is not None and not (isinstance(width, int) and 16 <= width <= LARGEST):
            raise ValueError(f"width: got {width!r}, allowed 16 to {LARGEST} pixels")
        if not self.path.parent.is_dir():
            raise FileNotFoundError(f"path: there is no folder {self.path.parent}")
        self.fps, self.width = fps, width
        self.frames = 0
        self._ffmpeg = _find_ffmpeg()
        self._shape: tuple[int, ...] = ()
        self._process: subprocess.Popen[bytes] | None = None
        self._messages: IO[bytes] | None = None
        self._finish: Any = None

    def add(self, frame: NDArray[np.uint8]) -> None:
        """Write one frame.

        Args:
            frame: uint8 (H, W, 3), all of one size.

        Raises:
            ValueError: no such frame, or one of another size; the file goes on without it.
            OSError: ffmpeg has ended; the message has what it said.
        """
        frame = np.asarray(frame)
        if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
            raise ValueError(f"frame: got {frame.dtype} {frame.shape}, allowed uint8 (H, W, 3)")
        if not (0 < frame.shape[0] <= LARGEST and 0 < frame.shape[1] <= LARGEST):
            raise ValueError(f"frame: got {frame.shape}, allowed 1 to {LARGEST} pixels a side")
        if self._process is None:
            self._start(frame.shape)
        if frame.shape != self._shape:
            raise ValueError(f"frame: got {frame.shape}, the first one had {self._shape}")
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(np.ascontiguousarray(frame).data)
            self._process.stdin.flush()
        except OSError:
            raise self._failed() from None
        self.frames += 1

    def close(self) -> None:
        """Finish the file and give it its name; a second call does nothing.

        Raises:
            OSError: ffmpeg could not finish it.
        """
        if self._finish is not None and self._finish.alive and self._finish() != 0:
            raise self._failed()

    def __enter__(self) -> Video:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _start(self, shape: tuple[int, ...]) -> None:
        height, width, _ = shape
        hidden = self.path.with_name(f".{self.path.stem}-{secrets.token_hex(4)}{self.path.suffix}")
        scale = "" if self.width is None else f"scale={self.width}:-1:flags=area,"
        options = [part.format(scale=scale) for part in FORMS[self.path.suffix.lower()]]
        self._messages = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        self._process = subprocess.Popen(
            [
                self._ffmpeg, "-loglevel", "error", "-y",
                "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}",
                "-r", f"{self.fps:g}", "-i", "-", *options, str(hidden),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._messages,
            start_new_session=True,  # Ctrl-C is for us; ffmpeg ends when the pipe does
        )  # fmt: skip
        self._shape = shape
        self._finish = weakref.finalize(self, _finish, self._process, hidden, self.path)

    def _failed(self) -> OSError:
        assert self._messages is not None
        self._messages.seek(0)
        said = self._messages.read().decode("utf-8", "replace").strip().splitlines()
        return OSError(f"{self.path}: ffmpeg failed: {said[-1] if said else 'without a message'}")


def _finish(process: subprocess.Popen[bytes], hidden: Path, path: Path) -> int:
    """End ffmpeg; its exit code, after the file took its name if that is 0."""
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
    code = process.wait()
    if code == 0:
        os.replace(hidden, path)
    else:
        hidden.unlink(missing_ok=True)
    return code


def _find_ffmpeg() -> str:
    try:
        from imageio_ffmpeg import get_ffmpeg_exe
    except ImportError:
        raise ImportError(
            "videos need imageio-ffmpeg, which is not installed: pip install 'palestra[video]'"
        ) from None
    return str(get_ffmpeg_exe())
