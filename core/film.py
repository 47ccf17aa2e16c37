"""Watch a policy: episodes as pictures, for a window, a terminal, a file or a notebook."""

from __future__ import annotations

import base64
import copy
import html
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from .batch import BatchEnv, Episodes, Step
from .gym_batch import GymBatch
from .play import one_thread
from .policy import begin as begin_policy
from .policy import takes_masks
from .policy_loading import load_policy
from .registry import Target, resolve
from .shipped import shelf_of_env
from .spaces import Array
from .streams import check_seed
from .wrappers import Wrapper

MAX_STEPS = 10_000  # of an episode that does not end
FILM_FPS = 10.0  # of an environment's own film; its `render_fps` counts steps


@dataclass(frozen=True)
class Played:
    """An episode that was played to its end, as `evaluate` has it in its table.

    Attributes:
        episode: its number.
        total: the return: the sum of all rewards, of all agents.
        length: steps.
        terminated: whether the environment ended it (with agents: all have left).
        truncated: whether a limit of time did.
        metrics: those of the environment.
    """

    episode: int
    total: float
    length: int
    terminated: bool
    truncated: bool
    metrics: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """As plain data; NaN is None."""
        numbers = {key: None if value != value else value for key, value in self.metrics.items()}
        return {
            "episode": self.episode,
            "return": self.total,
            "length": self.length,
            "terminated": self.terminated,
            "truncated": self.truncated,
            **numbers,
        }


@dataclass(frozen=True)
class Scene:
    """A picture of an episode.

    Attributes:
        picture: uint8 (H, W, 3).
        episode: its number.
        step: steps taken so far.
        total: sum of the rewards so far.
    """

    picture: Array
    episode: int
    step: int
    total: float

    def __str__(self) -> str:
        return f"episode {self.episode}, step {self.step}, return {self.total:.4g}"


class Film:
    """Episodes of an environment under a policy, as pictures. They are played when asked for.

    Args:
        target: anything that `palestra.make` takes; or what it made, of one row, of which a copy
            plays; or any `gymnasium.Env` object, which plays itself and is not closed.
        policy: anything that `palestra.load_policy` takes; None: the one that ships with the
            environment, or else the random one.
        seed: whose episodes.
        episode: the first one.
        episodes: how many.
        settings: keyword arguments of the environment.
        max_steps: an episode is left after so many.

    Attributes:
        played: the episodes that have ended since pictures were last asked for.
        fps: pictures a second that the environment asks for.

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
        self.target: Target = _live(target) or resolve(target)
        self.seed = check_seed(seed)
        self.chosen = range(episode, episode + episodes)
        self.max_steps = max_steps
        self.settings = dict(settings or {})
        self.played: list[Played] = []
        env = self._made()
        try:
            self.policy = _default(env) if policy is None else policy
            self.fps: float = _pace(env)
            if not draws(env):
                plain = isinstance(innermost(env), GymBatch)
                lacks = "render(row)" + " or no render_mode 'rgb_array'" * plain
                raise NotImplementedError(
                    f"{self.target.name} draws no pictures: it has no {lacks}"
                )
        finally:
            env.close()

    def frames(self, advance: Callable[[float], None] = lambda done: None) -> Iterator[Array]:
        """The pictures, uint8 (H, W, 3), one after the other: none is kept.

        One a step; where steps differ in length and the environment has a `film`, pictures evenly
        spaced in time. `advance` is told of every episode that is over.
        """
        for scene in self.scenes(advance):
            yield scene.picture

    def scenes(self, advance: Callable[[float], None] = lambda done: None) -> Iterator[Scene]:
        """The same, with the number of the episode, the step and the return so far."""
        env = self._made()
        self.played.clear()
        try:
            actor = load_policy(self.policy, env)
            episodes = Episodes(env)
            for number in self.chosen:
                yield from self._episode(actor, episodes, number)
                advance(1)
        finally:
            env.close()

    def _episode(self, actor: Any, episodes: Episodes, number: int) -> Iterator[Scene]:
        env = episodes.env
        episodes.seed(self.seed)
        episodes.upcoming[:] = number
        episodes.begin(env.everyone)
        begin_policy(actor, env.everyone, episodes.streams)
        film = getattr(innermost(env), "film", None)
        length, total, returns = 0, 0.0, [0.0] * max(1, len(env.agents))
        if film is None:
            yield Scene(env.render(0), number, length, total)
        state, fresh = None, np.ones(1, np.bool_)
        while not episodes.ended[0] and length < self.max_steps:
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
                step, _ = episodes.advance(actions)
            fresh = np.zeros(1, np.bool_)
            length += 1
            paid = step.reward.reshape(-1).tolist()
            returns = [so_far + reward for so_far, reward in zip(returns, paid, strict=True)]
            total = sum(returns)  # in the order in which `evaluate` adds
            if film is None:
                yield Scene(env.render(0), number, length, total)
        self.played.append(_played(episodes, step, number, length, total))
        if film is not None:
            for picture in film(0):
                yield Scene(picture, number, length, total)

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

    def show(self, fps: float | None = None, view: str = "auto") -> None:
        """Show it in a window or in the terminal, until it ends or the window is closed.

        Args:
            fps: pictures a second; None: the environment's own pace.
            view: "window", "terminal", or "auto": a window where there can be one.

        Raises:
            ValueError: nothing to show it on; `save` needs nothing.
        """
        from .screens import screen

        with screen(self.target.name, self.fps if fps is None else fps, view) as place:
            for scene in self.scenes():
                if not place.show(scene.picture, str(scene)):
                    break

    def _repr_html_(self) -> str:
        """The whole film as a video inside the page, with play, pause and a slider."""
        with tempfile.TemporaryDirectory() as folder:
            try:
                data = self.save(Path(folder) / "film.mp4").read_bytes()
            except ImportError as missing:
                return html.escape(f"{self!r}: {missing}")
        source = f"data:video/mp4;base64,{base64.b64encode(data).decode()}"
        return (
            f'<video src="{source}" title="{html.escape(str(self))}" style="max-width:100%" '
            "controls autoplay loop muted playsinline></video>"
        )

    def __repr__(self) -> str:
        last = self.chosen[-1]
        span = (
            f"episode {last}" if len(self.chosen) == 1 else f"episodes {self.chosen[0]} to {last}"
        )
        policy = self.policy if isinstance(self.policy, str | Path) else type(self.policy).__name__
        return f"{self.target.name} under {policy}: {span} of seed {self.seed}"

    def _made(self) -> BatchEnv:
        env = self.target.make(1, **self.settings)
        inside = innermost(env)
        one = inside.copies[0] if isinstance(inside, GymBatch) else None
        if one is None or one.render_mode is not None:
            return env
        if "rgb_array" not in one.metadata.get("render_modes", ()):
            return env
        env.close()
        return self.target.make(1, **{**self.settings, "render_mode": "rgb_array"})


def watch(target: Any, policy: Any = None, **arguments: Any) -> Film:
    """Episodes as pictures: a notebook shows them, `save` writes a video, `show` opens a window.

    Args:
        target: anything that `palestra.make` takes; also what it made, or any `gymnasium.Env`.
        policy: anything that `palestra.load_policy` takes; None: the one that ships with the
            environment, or else the random one.
        arguments: of `Film`: `seed`, `episode`, `episodes`, `settings`, `max_steps`.
    """
    return Film(target, policy, **arguments)


class _Borrowed(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that somebody else closes."""

    def close(self) -> None:
        """Leave it open."""


def _live(target: Any) -> Target | None:
    """What is built already, as a target; None for anything else."""
    inside = getattr(target, "unwrapped", target)
    batch = inside if isinstance(inside, BatchEnv) else getattr(inside, "batch", None)
    if isinstance(batch, BatchEnv) and not isinstance(target, type):
        if batch.rows != 1:
            raise ValueError(f"target: has {batch.rows} rows, and one is watched; name the target")
        name, live = type(innermost(batch)).__name__, batch
        if isinstance(innermost(batch), GymBatch):
            name = batch.stream_name()
        return Target(name, None, lambda rows, **settings: _as_it_is(copy.deepcopy(live), settings))
    if not isinstance(target, gymnasium.Env):
        return None

    def borrow(rows: int, **settings: Any) -> BatchEnv:
        return _as_it_is(GymBatch(rows, lambda: _Borrowed(target)), settings)

    return Target(type(inside).__name__, None, borrow)


def _as_it_is(env: BatchEnv, settings: Mapping[str, Any]) -> BatchEnv:
    if "render_mode" in settings:
        raise NotImplementedError(
            'target: was built without pictures; build it with render_mode="rgb_array"'
        )
    if settings:
        raise ValueError(f"settings: got {', '.join(settings)}, but the target is built already")
    return env


def innermost(env: BatchEnv) -> BatchEnv:
    """The environment inside all wrappers."""
    while isinstance(env, Wrapper):
        env = env.env
    return env


def draws(env: BatchEnv) -> bool:
    """Whether an environment has pictures."""
    inside = innermost(env)
    if isinstance(inside, GymBatch):
        return inside.copies[0].render_mode == "rgb_array"
    return type(inside).render is not BatchEnv.render


def _played(episodes: Episodes, step: Step, number: int, length: int, total: float) -> Played:
    """What the table of `evaluate` has of the episode of the only row."""
    agents = episodes.env.agents
    terminated = bool(episodes.left.all() if agents else step.terminated[0])
    truncated = bool(step.truncated[0]) or not episodes.ended[0]
    metrics = {name: values[0].item() for name, values in episodes.metrics().items()}
    return Played(number, total, length, terminated, truncated, metrics)


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
        """The next action, the first at the start; the last one again after the end."""
        from .spaces import take

        if episode_start is not None and np.any(episode_start):
            self.step = 0
        at = min(self.step, self.length - 1)
        self.step += 1
        return take(self.actions, slice(at, at + 1)), None


def _default(env: BatchEnv) -> str:
    return "random" if shelf_of_env(env).pretrained is None else "pretrained"


def _pace(env: BatchEnv) -> float:
    inside = innermost(env)
    if isinstance(inside, GymBatch):
        return float(inside.copies[0].metadata.get("render_fps") or 30)
    return FILM_FPS if hasattr(inside, "film") else float(inside.render_fps)
