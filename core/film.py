"""Watch a policy: episodes as pictures, for a window, a terminal, a file or a notebook."""

from __future__ import annotations

import base64
import html
import io
import itertools
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .batch import BatchEnv, Episodes
from .gym_batch import GymBatch
from .play import one_thread
from .policy import begin as begin_policy
from .policy import takes_masks
from .policy_loading import load_policy
from .registry import Target, resolve
from .shipped import shelf_of
from .spaces import Array
from .streams import check_seed

MAX_STEPS = 10_000  # of an episode that does not end
INLINE = 120  # pictures of the animation in a notebook


class Film:
    """Episodes of an environment under a policy, as pictures. They are played when asked for.

    Args:
        target: anything that `palestra.make` takes.
        policy: anything that `palestra.load_policy` takes; None: the one that ships with the
            environment, or else the random one.
        seed: whose episodes.
        episode: the first one.
        episodes: how many.
        settings: keyword arguments of the environment.
        max_steps: an episode is left after so many.

    Raises:
        ValueError: an argument out of range.
        NotImplementedError: the environment draws no pictures.
    """

    def __init__(
        self,
        target: Any,
        policy: Any = None,
        *,
        seed: int = 0,
        episode: int = 0,
        episodes: int = 1,
        settings: Mapping[str, Any] | None = None,
        max_steps: int = MAX_STEPS,
    ) -> None:
        for name, value, least in (
            ("episode", episode, 0), ("episodes", episodes, 1), ("max_steps", max_steps, 1),
        ):  # fmt: skip
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name}: got {value!r}, allowed an integer of {least} or more")
        self.target: Target = resolve(target)
        self.seed = check_seed(seed)
        self.policy = _default(self.target) if policy is None else policy
        self.chosen = range(episode, episode + episodes)
        self.max_steps = max_steps
        self.settings = dict(settings or {})
        env = self._made()
        try:
            self.fps: float = _pace(env)
            if not draws(env):
                raise NotImplementedError(
                    f"{self.target.name} draws no pictures: it has no render(row)"
                    + (" or no render_mode 'rgb_array'" if isinstance(env, GymBatch) else "")
                )
        finally:
            env.close()

    def frames(self, advance: Callable[[float], None] = lambda done: None) -> Iterator[Array]:
        """The pictures, uint8 (H, W, 3), one after the other: none is kept.

        One a step; where steps differ in length and the environment has a `film`, pictures evenly
        spaced in time. `advance` is told of every episode that is over.
        """
        env = self._made()
        try:
            actor = load_policy(self.policy, env)
            episodes = Episodes(env)
            for number in self.chosen:
                yield from self._episode(env, actor, episodes, number)
                advance(1)
        finally:
            env.close()

    def _episode(
        self, env: BatchEnv, actor: Any, episodes: Episodes, number: int
    ) -> Iterator[Array]:
        episodes.seed(self.seed)
        episodes.upcoming[:] = number
        episodes.begin(env.everyone)
        begin_policy(actor, env.everyone, episodes.streams)
        whole = hasattr(env, "film")
        if not whole:
            yield env.render(0)
        state, fresh = None, np.ones(1, np.bool_)
        for _ in range(self.max_steps):
            masks = episodes.masks()
            wanted = {"action_masks": masks} if masks is not None and takes_masks(actor) else {}
            with one_thread():
                actions, state = actor.predict(
                    episodes.observe(),
                    state=state,
                    episode_start=fresh,
                    deterministic=True,
                    **wanted,
                )
                episodes.advance(actions)
            fresh = np.zeros(1, np.bool_)
            if not whole:
                yield env.render(0)
            if episodes.ended[0]:
                break
        if whole:
            yield from env.film(0)  # type: ignore[attr-defined]

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        fps: float | None = None,
        width: int | None = None,
        advance: Callable[[float], None] = lambda done: None,
    ) -> Path:
        """Write a video, frame by frame.

        Args:
            path: ends in `.mp4` or `.gif`.
            fps: frames a second; None: the environment's own pace.
            width: of the pictures in the file, in pixels; None: their own.
            advance: told of every episode that is over.

        Raises:
            ImportError: the extra `video` is not installed.
            ValueError, OSError: see `palestra.video.Video`.
        """
        from .video import Video

        with Video(path, self.fps if fps is None else fps, width) as video:
            for frame in self.frames(advance):
                video.add(frame)
        return Path(path)

    def show(self, fps: float | None = None) -> None:
        """Show it in a window where there is a display, else in the terminal.

        Raises:
            ValueError: neither a display nor a terminal; `save` needs none.
        """
        pace = self.fps if fps is None else fps
        if has_display():
            from .views.human import Window

            window = Window(self.target.name, round(pace))
            try:
                for frame in self.frames():
                    window.show(frame)
            finally:
                window.close()
        elif sys.stdout.isatty():
            _play_in_terminal(self.frames(), pace)
        else:
            raise ValueError(
                "watch: there is neither a display nor a terminal to show it; save it to a file "
                "(--save film.mp4 on the command line)"
            )

    def _repr_html_(self) -> str:
        """An animation that a notebook shows; at most `INLINE` pictures of the first episodes."""
        try:
            from PIL import Image
        except ImportError:
            return html.escape(f"{self!r}: pictures need Pillow, pip install 'palestra[video]'")
        pictures = [Image.fromarray(frame) for frame in itertools.islice(self.frames(), INLINE)]
        buffer = io.BytesIO()
        first, *others = pictures
        first.save(
            buffer, "WEBP", save_all=True, append_images=others, duration=1000 / self.fps, loop=0,
            quality=80,
        )  # fmt: skip
        source = base64.b64encode(buffer.getvalue()).decode()
        text = html.escape(str(self))
        return f'<img alt="{text}" title="{text}" src="data:image/webp;base64,{source}">'

    def __repr__(self) -> str:
        last = self.chosen[-1]
        span = (
            f"episode {last}" if len(self.chosen) == 1 else f"episodes {self.chosen[0]} to {last}"
        )
        policy = self.policy if isinstance(self.policy, str | Path) else type(self.policy).__name__
        return f"{self.target.name} under {policy}: {span} of seed {self.seed}"

    def _made(self) -> BatchEnv:
        env = self.target.make(1, **self.settings)
        one = env.copies[0] if isinstance(env, GymBatch) else None
        if one is None or one.render_mode is not None:
            return env
        if "rgb_array" not in one.metadata.get("render_modes", ()):
            return env
        env.close()
        return self.target.make(1, **{**self.settings, "render_mode": "rgb_array"})


def watch(target: Any, policy: Any = None, **arguments: Any) -> Film:
    """Episodes as pictures: a notebook shows them, `save` writes a video, `show` opens a window.

    Args:
        target: anything that `palestra.make` takes.
        policy: anything that `palestra.load_policy` takes; None: the one that ships with the
            environment, or else the random one.
        arguments: of `Film`: `seed`, `episode`, `episodes`, `settings`, `max_steps`.
    """
    return Film(target, policy, **arguments)


def draws(env: BatchEnv) -> bool:
    """Whether an environment has pictures."""
    if isinstance(env, GymBatch):
        return env.copies[0].render_mode == "rgb_array"
    return type(env).render is not BatchEnv.render


def has_display() -> bool:
    """Whether a window can be opened."""
    if sys.platform in ("win32", "darwin"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


class RecordedActions:
    """A policy for one row that takes the actions of a recorded episode, in their order."""

    def __init__(self, actions: Any, length: int) -> None:
        self.actions, self.length, self.step = actions, length, 0

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
    ) -> tuple[Any, Any]:
        """The next action; the last one again after the end."""
        from .spaces import take

        at = min(self.step, self.length - 1)
        self.step += 1
        return take(self.actions, slice(at, at + 1)), None


def _default(target: Target) -> str:
    return "random" if shelf_of(target).pretrained is None else "pretrained"


def _pace(env: BatchEnv) -> float:
    if isinstance(env, GymBatch):
        return float(env.copies[0].metadata.get("render_fps") or 30)
    return float(env.render_fps)


def _play_in_terminal(frames: Iterator[Array], fps: float) -> None:
    """Two pixels a character: an upper half block in the colour of one, on that of the other."""
    columns, lines = shutil.get_terminal_size()
    due = time.monotonic()
    print("\x1b[2J\x1b[?25l", end="")
    try:
        for frame in frames:
            print("\x1b[H" + half_blocks(frame, columns, lines - 1), end="", flush=True)
            due += 1 / fps
            time.sleep(max(0.0, due - time.monotonic()))
    finally:
        print("\x1b[0m\x1b[?25h")


def half_blocks(frame: Array, columns: int, lines: int) -> str:
    """A picture as text with colours, within so many columns and lines; means over its pixels."""
    if len(frame) == 1:
        frame = np.repeat(frame, 2, axis=0)  # a character is two pixels high
    height, width, _ = frame.shape
    scale = max(1.0, width / columns, height / (2 * lines))
    across, down = max(1, int(width / scale)), 2 * max(1, int(height / scale / 2))
    rows, cols = np.arange(down) * height // down, np.arange(across) * width // across
    sums = np.add.reduceat(np.add.reduceat(frame.astype(np.float64), rows, axis=0), cols, axis=1)
    areas = np.diff(rows, append=height)[:, None] * np.diff(cols, append=width)[None, :]
    small = (sums / areas[..., None]).astype(int)
    text = []
    for upper, lower in zip(small[::2], small[1::2], strict=True):
        cells = (
            f"\x1b[38;2;{a[0]};{a[1]};{a[2]};48;2;{b[0]};{b[1]};{b[2]}m▀"
            for a, b in zip(upper.tolist(), lower.tolist(), strict=True)
        )
        text.append("".join(cells) + "\x1b[0m")
    return "\r\n".join(text)
