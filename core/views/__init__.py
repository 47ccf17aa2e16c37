"""Every interface is a view of one BatchEnv; none of them holds dynamics of its own."""

from __future__ import annotations

from typing import Any

from ..registry import resolve

VIEWS = ("gym", "vector", "sb3", "parallel", "aec")
BATCHED = ("vector", "sb3")
DEFAULT_ROWS = 64


def make(target: Any, view: str = "gym", rows: int | None = None, **settings: Any) -> Any:
    """Build an environment behind one of the interfaces.

    Args:
        target: a name, a Gymnasium id, `module:name`, `path/file.py:name`, or a class
            (see `palestra.registry`).
        view: "gym" (gymnasium.Env), "vector" (gymnasium.vector.VectorEnv), "sb3"
            (Stable-Baselines3 VecEnv), "parallel" or "aec" (PettingZoo).
        rows: copies, for "vector" and "sb3" (64 by default); the other views have one.
        settings: `render_mode`; `autoreset_mode` (vector); `max_episode_steps` (can only shorten
            the horizon); the rest goes to the environment.

    Returns:
        The view.

    Raises:
        UnknownName: no such environment.
        ValueError: unknown view, rows that the view cannot have, a setting out of range.
        TypeError: a setting that the environment does not have.
    """
    if view not in VIEWS:
        raise ValueError(f"view: got {view!r}, allowed {', '.join(VIEWS)}")
    if view not in BATCHED and rows not in (None, 1):
        raise ValueError(f'rows: got {rows}, allowed 1 for view={view!r}; use "vector" or "sb3"')
    wanted = {
        name: settings.pop(name)
        for name in ("render_mode", *(["autoreset_mode"] if view == "vector" else []))
        if name in settings
    }
    count = (DEFAULT_ROWS if rows is None else rows) if view in BATCHED else 1
    env = resolve(target).make(count, **settings)
    if view == "gym":
        from .gym import GymView

        return GymView(env, **wanted)
    if view == "vector":
        from .vector import VectorView

        return VectorView(env, **wanted)
    if view == "sb3":
        from .sb3 import SB3View

        return SB3View(env, **wanted)
    from .pettingzoo import AECView, ParallelView

    return (ParallelView if view == "parallel" else AECView)(env, **wanted)


def gym_entry(target: str, **settings: Any) -> Any:
    """What `gymnasium.make` calls."""
    return make(target, "gym", **settings)


def vector_entry(num_envs: int, target: str, **settings: Any) -> Any:
    """What `gymnasium.make_vec` calls."""
    return make(target, "vector", num_envs, **settings)
