"""Where pictures are shown as they are made: a window, or the terminal in half blocks."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import os
import sys
import time
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .spaces import Array
from .views.human import Window

if TYPE_CHECKING:
    from rich.segment import Segment

LEAST_COLUMNS, LEAST_LINES = 40, 12
INSTEAD = "save a video (--save FILE.mp4)"
VIEWS = ("auto", "window", "terminal")


class Screen(Protocol):
    """Shows pictures at a steady pace."""

    def show(self, picture: Array, caption: str) -> bool:
        """Show a uint8 (H, W, 3) picture; whether anybody still looks."""
        ...

    def __enter__(self) -> Screen: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


def screen(title: str, fps: float, view: str = "auto") -> Screen:
    """A screen to show pictures on.

    Args:
        title: of the window.
        fps: pictures a second.
        view: "window" (needs the `view` extra and a display), "terminal", or "auto": the window if
            there can be one, else the terminal.

    Raises:
        ValueError: there is neither, or not the one that was asked for; the message says what to
            do instead.
    """
    if view not in VIEWS:
        raise ValueError(f"view: got {view!r}, allowed {', '.join(VIEWS)}")
    if view == "window" or (view == "auto" and has_display() and _has_pygame()):
        if not has_display():
            raise ValueError(
                "view: there is no display for a window; save a video (--save FILE.mp4)"
            )
        return WindowScreen(title, fps)
    if (problem := terminal_problem()) is not None:
        raise ValueError(
            f"view: nothing to show pictures on: {problem}; save a video (--save FILE.mp4)"
        )
    return TerminalScreen(fps)


def has_display() -> bool:
    """Whether a window can be opened."""
    if sys.platform in ("win32", "darwin"):
        return True
    names = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")
    return any(os.environ.get(name) for name in names)


def _has_pygame() -> bool:
    return importlib.util.find_spec("pygame") is not None


def terminal_problem() -> str | None:
    """Why the terminal cannot show pictures; None if it can."""
    from rich.console import Console

    if not sys.stdout.isatty():
        return "stdout is not a terminal"
    console = Console()
    if console.color_system is None:
        return "the terminal shows no colours"
    if console.width < LEAST_COLUMNS or console.height < LEAST_LINES:
        return (
            f"the terminal has {console.width} columns and {console.height} lines, at least "
            f"{LEAST_COLUMNS} and {LEAST_LINES} are needed"
        )
    return None


class WindowScreen:
    """A window of the size of the pictures; closing it ends the show."""

    def __init__(self, title: str, fps: float) -> None:
        self.window = Window(title, fps)

    def show(self, picture: Array, caption: str) -> bool:
        """Show a picture, with its caption in the title."""
        self.window.show(picture, caption)
        return not self.window.dismissed

    def __enter__(self) -> WindowScreen:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.window.close()


class TerminalScreen:
    """Half blocks in the terminal: two pixels a character, as many as fit."""

    def __init__(self, fps: float) -> None:
        from rich.console import Console
        from rich.live import Live

        self.console = Console()
        self.live = Live(console=self.console, auto_refresh=False)
        self.seconds, self.due = 1.0 / fps, time.monotonic()

    def show(self, picture: Array, caption: str) -> bool:
        """Show a picture with its caption below; waits until its time has come."""
        time.sleep(max(0.0, self.due - time.monotonic()))
        self.due = max(self.due, time.monotonic() - self.seconds) + self.seconds
        width, height = self.console.width, 2 * (self.console.height - 3)
        self.live.update(_Blocks(fitted(picture, width, height), caption), refresh=True)
        return True

    def __enter__(self) -> TerminalScreen:
        self.live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.live.stop()


def fitted(picture: Array, width: int, height: int) -> Array:
    """A picture scaled to fit, by means over areas; its height is even.

    Args:
        picture: uint8 (H, W, 3).
        width: pixels at most.
        height: pixels at most, 2 or more.

    Returns:
        uint8 (h, w, 3).
    """
    high, wide, _ = picture.shape
    scale = min(width / wide, height / high)
    rows = min(height // 2 * 2, max(2, 2 * round(high * scale / 2)))
    columns = min(width, max(1, round(wide * scale)))
    top = np.arange(rows) * high // rows
    left = np.arange(columns) * wide // columns
    # where two indices are the same, reduceat takes the one element there
    sums = np.add.reduceat(picture.astype(np.float64), top, axis=0)
    sums = np.add.reduceat(sums, left, axis=1)
    tall = np.maximum(1, np.diff(np.append(top, high)))
    broad = np.maximum(1, np.diff(np.append(left, wide)))
    means = sums / (tall[:, None, None] * broad[None, :, None])
    scaled: Array = np.rint(means).astype(np.uint8)
    return scaled


class _Blocks:
    """A picture as rich draws it."""

    def __init__(self, pixels: Array, caption: str) -> None:
        self.pixels, self.caption = pixels, caption

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Segment]:
        from rich.segment import Segment

        for upper, lower in zip(self.pixels[::2].tolist(), self.pixels[1::2].tolist(), strict=True):
            cells = zip(upper, lower, strict=True)
            for (above, below), run in itertools.groupby(cells):
                yield Segment("▀" * len(list(run)), _style(*above, *below))
            yield Segment.line()
        yield Segment(self.caption[: options.max_width])


@functools.lru_cache(maxsize=65536)
def _style(*rgb: int) -> Any:
    from rich.color import Color
    from rich.style import Style

    return Style(color=Color.from_rgb(*rgb[:3]), bgcolor=Color.from_rgb(*rgb[3:]))
