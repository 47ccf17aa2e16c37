"""What wants a process of its own: pictures without a display, and the stock checkers."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..batch import BatchEnv
from ..global_random import preserved
from .compare import shown
from .finding import Event, Held, Started
from .play import Call, Raised, course
from .repeat import as_returned, departure
from .subject import Subject

PICTURES, WINDOWS = 6, 2  # calls that are drawn
STOCK_SECONDS = 60.0


def check_render(subject: Subject, calls: list[Call], windows: bool) -> Iterator[Event]:
    """Every declared mode.

    Args:
        subject: the environment.
        calls: the course without pictures.
        windows: whether modes that open a window may be tried (on a display that is none).
    """
    modes = _modes(subject)
    if not modes:
        yield subject.not_applicable("render", "it declares no render mode")
        return
    drawn = []
    for mode in sorted(modes, key=lambda mode: mode == "human"):  # it may end the process
        yield Started(f"render ({mode})")
        if mode == "human" and not windows:
            yield subject.not_applicable("render", "human: windows are opened in a process apart")
            continue
        problem = _problem_of(subject, mode, calls)
        if problem is None:
            drawn.append(mode)
        elif problem.startswith("?"):
            yield subject.not_applicable("render", f"{mode}: {problem[1:]}")
        else:
            yield subject.finding(
                "render",
                f"{mode}: {problem}",
                field=mode,
                shows=_drawn_script(subject, mode),
            )
    if drawn:
        yield Held("render", ", ".join(drawn))


def _modes(subject: Subject) -> list[str]:
    env = subject.one()
    declared = (getattr(env, "metadata", None) or {}).get("render_modes", [])
    batch = getattr(env, "batch", None)
    env.close()
    if subject.ours and isinstance(batch, BatchEnv) and type(batch).render is BatchEnv.render:
        return []
    return [str(mode) for mode in declared]


def _problem_of(subject: Subject, mode: str, calls: list[Call]) -> str | None:
    """What is wrong with a mode; after a question mark, why it cannot be looked at."""
    try:
        player = subject.player(render_mode=mode)
    except Exception as problem:
        return _missing(problem) or f"cannot be built: {type(problem).__name__}: {problem}"
    seen, drawn = [], WINDOWS if mode == "human" else PICTURES
    try:
        for call in course(player, 0, min(drawn, len(calls))):
            seen.append(as_returned(call))
            picture = player._guarded(player.env.render)
            wrong = _wrong_picture(mode, picture)
            if wrong is not None:
                return wrong
    except Raised as raised:
        return _missing(raised.problem) or f"step {raised.step} raises {raised}"
    finally:
        with contextlib.suppress(Exception):
            player.env.close()
    parted = departure(calls, seen)
    if parted is not None:
        return f"render() changes the course: {parted[1]} at call {parted[0]}"
    return None


def _missing(problem: BaseException) -> str | None:
    absent = isinstance(problem, ImportError) or type(problem).__name__ == "DependencyNotInstalled"
    if absent or "exists already" in str(problem):
        return f"?{problem}"
    return None


def _wrong_picture(mode: str, picture: Any) -> str | None:
    if mode == "rgb_array":
        right = isinstance(picture, np.ndarray) and picture.dtype == np.uint8
        if not (right and picture.ndim == 3 and picture.shape[2] == 3):
            return f"render() gave {shown(picture)}, allowed an array uint8 (H, W, 3)"
    if mode == "ansi" and not isinstance(picture, str | io.StringIO):
        return f"render() gave {shown(picture)}, allowed a string"
    return None


def _drawn_script(subject: Subject, mode: str) -> str:
    text = subject.builder
    inside, end = text.rsplit(")", 1)
    comma = "" if inside.endswith("(") else ", "
    drawing = f'{inside}{comma}render_mode="{mode}"){end}'.replace("def build(", "def drawn(")
    return (
        f"{drawing}\n\n\nenv = drawn()\n"
        f"for plain, last in zip(play(build(), 0, {PICTURES}), play(env, 0, {PICTURES})):\n"
        "    picture = env.render()\n"
        + (
            "    assert picture.dtype == np.uint8 and picture.shape[2:] == (3,), picture\n"
            if mode == "rgb_array"
            else ""
        )
        + "    assert difference(plain, last) is None, difference(plain, last)"
    )


# ------------------------------------------------------------------ stock checkers


_STOCK: dict[str, dict[str, str]] = {
    "stock: gymnasium": {
        "gym": "from gymnasium.utils.env_checker import check_env\n\n"
        "check_env(build().unwrapped, skip_render_check=True)"
    },
    "stock: stable-baselines3": {
        "gym": "from stable_baselines3.common.env_checker import check_env\n\n"
        "check_env(build().unwrapped)"
    },
    "stock: pettingzoo": {
        "parallel": "from pettingzoo.test import parallel_api_test\n\n"
        "parallel_api_test(build(), num_cycles=200)",
        "aec": "from pettingzoo.test import api_test\n\napi_test(build(), num_cycles=200)",
    },
}


def check_stock(subject: Subject) -> Iterator[Event]:
    """The checkers that libraries ship, as lines of their own."""
    for name, library, wanted, run in (
        ("stock: gymnasium", "gymnasium", ("gym",), _gymnasium),
        ("stock: stable-baselines3", "stable_baselines3", ("gym",), _stable_baselines3),
        ("stock: pettingzoo", "pettingzoo", ("parallel", "aec"), _pettingzoo),
    ):
        if subject.kind not in wanted:
            continue
        if subject.masked and not subject.ours:
            yield subject.not_applicable(name, "it samples actions without their mask")
            continue
        if importlib.util.find_spec(library) is None:
            yield subject.not_applicable(name, f"{library} is not installed")
            continue
        env = subject.one()
        problem, remarks = _stock(subject, run, env)
        if problem is not None:
            yield subject.finding(name, problem, shows=_STOCK[name][subject.kind])
        else:
            yield Held(name, _in_short(remarks))


def _stock(subject: Subject, run: Callable[[Any], None], env: Any) -> tuple[str | None, list[str]]:
    """What a stock checker raised, and what it warned of."""
    subject.watch.enter(-1, -1, STOCK_SECONDS)
    problem = None
    with warnings.catch_warnings(record=True) as caught, preserved():
        warnings.simplefilter("always")
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                run(env)
            except Exception as raised:
                problem = f"{type(raised).__name__}: {raised}"
            finally:
                subject.watch.leave()
                with contextlib.suppress(Exception):
                    env.close()
    return problem, sorted({str(w.message) for w in caught})


def _in_short(remarks: list[str]) -> str:
    if not remarks:
        return ""
    plain = [" ".join(r.replace("\x1b[33m", "").replace("\x1b[0m", "").split()) for r in remarks]
    texts = [text if len(text) < 100 else text[:97] + "..." for text in plain]
    return f"{len(texts)} remarks: " + "; ".join(texts[:3])


def _gymnasium(env: Any) -> None:
    from gymnasium.utils.env_checker import check_env

    check_env(env.unwrapped, skip_render_check=True)


def _stable_baselines3(env: Any) -> None:
    from stable_baselines3.common.env_checker import check_env

    check_env(env.unwrapped, warn=True, skip_render_check=True)


def _pettingzoo(env: Any) -> None:
    from pettingzoo import AECEnv

    if isinstance(env, AECEnv):
        from pettingzoo.test import api_test

        api_test(env, num_cycles=200, verbose_progress=False)
    else:
        from pettingzoo.test import parallel_api_test

        parallel_api_test(env, num_cycles=200)
