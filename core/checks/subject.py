"""What a target is: its interface, how to build a copy, and how a program of its own would."""

from __future__ import annotations

import copy
import functools
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium

from .. import registry
from ..batch import BatchEnv
from ..gym_batch import GymBatch
from .finding import NOT_APPLICABLE, RULES, Finding, Rule
from .play import PLAYERS, Player, script
from .watch import Watch


@dataclass
class Subject:
    """An environment to be checked.

    Attributes:
        name: for people.
        kind: the interface of one copy: "gym", "parallel" or "aec".
        ours: whether it is a BatchEnv; what wraps a plain environment is not.
        one: builds one copy behind its interface; takes `render_mode`.
        rows: builds a BatchEnv of so many rows; None for what has no rows.
        why_no_rows: why not.
        reference: a target that another process resolves to the same; None: there is none.
        settings: of the environment.
        builder: lines of a program that define `build()`, one copy behind its interface.
        rows_builder: lines that define `build(rows)`.
        masked: whether it has `action_masks`.
        mask_text: how a program gets the mask of a plain Gymnasium environment.
        watch: is told which call runs.
    """

    name: str
    kind: str
    ours: bool
    one: Callable[..., Any]
    rows: Callable[[int], BatchEnv] | None
    why_no_rows: str
    reference: str | None
    settings: Mapping[str, Any]
    builder: str
    rows_builder: str
    masked: bool = False
    mask_text: str | None = None
    watch: Watch = field(default_factory=Watch)

    def player(self, env: Any = None, **settings: Any) -> Player:
        """A player of a copy (of a new one, unless one is given)."""
        return PLAYERS[self.kind](self.one(**settings) if env is None else env, self.watch)

    def level(self, rule: Rule) -> str:
        """How serious it is when this rule is broken."""
        return rule.ours if self.ours else rule.foreign

    def finding(
        self,
        check: str,
        message: str,
        episode: int | None = None,
        step: int | None = None,
        field: str | None = None,
        shows: str | None = None,
        rows: bool = False,
    ) -> Finding:
        """Something that does not hold.

        Args:
            check: a name in `RULES`.
            message: what was seen.
            episode: where.
            step: where.
            field: what differs.
            shows: the end of a program that shows it; `build` and `play` are defined before it.
            rows: whether it plays rows (then `build(rows)` and `play_rows` are).
        """
        script = None
        if shows is not None:
            script = self.rows_script(shows) if rows else self.script(shows)
        level = self.level(RULES[check])
        return Finding(check, level, self.name, message, episode, step, field, script)

    def not_applicable(self, check: str, why: str) -> Finding:
        """A check that cannot be made here."""
        return Finding(check, NOT_APPLICABLE, self.name, why)

    def script(self, shows: str) -> str:
        """A program that plays one copy."""
        loop = script(self.kind, self.masked and self.ours, None if self.ours else self.mask_text)
        body = f"{self.builder}\n\n{loop}" if "play(" in shows else f"{self.builder}\n"
        return _program(body, shows)

    def rows_script(self, shows: str) -> str:
        """A program that plays rows."""
        return _program(f"{self.rows_builder}\n", shows)


_IMPORTS = {  # what a program may use, and where it comes from; "" is a module itself
    "copy": "",
    "gc": "",
    "os": "",
    "pickle": "",
    "random": "",
    "subprocess": "",
    "sys": "",
    "gymnasium": "",
    "np": "numpy",
    "palestra": "",
    "Episodes": "palestra.batch",
    "GymBatch": "palestra.gym_batch",
    "RowPlay": "palestra.checks.rows",
    "difference": "palestra.checks.compare",
    "get_state": "palestra.global_random",
    "load_object": "palestra.registry",
    "play_rows": "palestra.checks.rows",
    "play_vector": "palestra.checks.rows",
    "resolve": "palestra.registry",
    "row_state": "palestra.checks.rows",
}


def _program(body: str, shows: str) -> str:
    text = f"{body}\n\n{shows.strip()}\n"
    standard: list[str] = []
    others: list[str] = []
    names: dict[str, list[str]] = {}
    for name, module in _IMPORTS.items():
        follows = r"\." if module in ("", "numpy") else r"\("
        if not re.search(rf"(?<![\w.\"]){name}{follows}", text):
            continue
        if module in ("", "numpy"):
            line = f"import {module} as {name}" if module else f"import {name}"
            (standard if name in sys.stdlib_module_names else others).append(line)
        else:
            names.setdefault(module, []).append(name)
    others += [f"from {module} import {', '.join(names[module])}" for module in sorted(names)]
    imports = "\n\n".join("\n".join(lines) for lines in (standard, others) if lines)
    return f"{imports}\n\n\n{text.lstrip()}"


def find(target: Any, settings: Mapping[str, Any], watch: Watch | None = None) -> Subject:
    """What a target is.

    Args:
        target: anything that `palestra.registry.resolve` takes; a class of PettingZoo or a
            function that builds such an environment (or its name); or an environment itself.
        settings: of the environment.
        watch: is told which call runs.

    Raises:
        UnknownName, ImportError: there is no such target.
        TypeError: it is no environment.
    """
    watch = watch or Watch()
    if isinstance(target, BatchEnv):
        return _from_batch_env(target, settings, watch)
    value, reference, name = _loaded(target)
    if isinstance(value, registry.Target) or _builds_rows(value):
        return _from_target(registry.resolve(value), reference, name, settings, watch)
    if not callable(value) or _kind_of(value) is not None:
        return _from_instance(value, settings, watch)
    name = name or str(getattr(value, "__name__", type(value).__name__))
    builder = _call_text(reference, name, settings)
    build = functools.partial(value, **settings)
    return _from_builder(build, name, reference, settings, builder, watch)


def _loaded(target: Any) -> tuple[Any, str | None, str | None]:
    """The object of a target or its `Target`, the reference of it, and a short name."""
    if isinstance(target, str):
        if ":" in target and not target.startswith("gymnasium:"):
            found = registry.load_object(target)
            return found, target, target.rpartition(":")[2]
        resolved = registry.resolve(target)
        return resolved, resolved.reference, resolved.name
    return target, reference_of(target), None


def reference_of(value: Any) -> str | None:
    """A target that another process resolves to this object, or None."""
    name = getattr(value, "__qualname__", None)
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    if module is None or name is None or "<" in name or module.__name__ == "__main__":
        return None
    file = getattr(module, "__file__", None)
    if file is not None and file.endswith(".py") and not _importable(module.__name__):
        return f"{file}:{name}"
    return f"{module.__name__}:{name}"


def _importable(module: str) -> bool:
    """Whether a new process finds the module by its name; not so for files of targets and tests."""
    top = module.partition(".")[0]
    return any(finder.find_spec(top, None) is not None for finder in sys.meta_path)


def _builds_rows(value: Any) -> bool:
    if isinstance(value, type):
        return issubclass(value, BatchEnv)
    return callable(value) and _kind_of(value) is None and registry.takes_rows(value)


def _kind_of(env: Any) -> str | None:
    """The interface of an environment, or None."""
    if isinstance(env, type):
        return None
    if isinstance(env, gymnasium.Env):
        return "gym"
    if "pettingzoo" in sys.modules:
        pettingzoo = sys.modules["pettingzoo"]
        if isinstance(env, pettingzoo.ParallelEnv):
            return "parallel"
        if isinstance(env, pettingzoo.AECEnv):
            return "aec"
    return None


def _from_target(
    target: registry.Target,
    reference: str | None,
    name: str | None,
    settings: Mapping[str, Any],
    watch: Watch,
) -> Subject:
    def rows(count: int) -> BatchEnv:
        return target.make(count, **settings)

    first = rows(1)
    name = name or target.name
    if isinstance(first, GymBatch):
        if reference in gymnasium.registry and not settings.keys() & {"horizon", "metrics"}:
            arguments = ", ".join([f'"{reference}"', *_arguments(settings)])
            builder = f"def build():\n    return gymnasium.make({arguments})"
        else:
            arguments = ", ".join(["1", *_arguments(settings)])
            resolved = f"resolve({_text(reference, name)}).make({arguments})"
            builder = f"def build():\n    return {resolved}.copies[0]"

        def one(**more: Any) -> Any:
            made = target.make(1, **settings, **more)
            return made.copies[0]  # type: ignore[attr-defined]

        subject = _from_builder(one, name, reference, settings, builder, watch)
        subject.rows, subject.why_no_rows = rows, ""
        subject.rows_builder = _rows_text(reference, name, settings)
        first.close()
        return subject
    kind = "parallel" if first.agents else "gym"
    masked = hasattr(first, "action_masks")
    first.close()

    def view(render_mode: str | None = None) -> Any:
        if kind == "gym":
            from ..views.gym import GymView

            return GymView(rows(1), render_mode)
        from ..views.pettingzoo import ParallelView

        return ParallelView(rows(1), render_mode)

    view_text = ['view="parallel"'] if kind == "parallel" else []
    shown = ", ".join([_text(reference, name), *view_text, *_arguments(settings)])
    return Subject(
        name=name,
        kind=kind,
        ours=True,
        one=view,
        rows=rows,
        why_no_rows="",
        reference=reference,
        settings=settings,
        builder=f"def build():\n    return palestra.make({shown})",
        rows_builder=_rows_text(reference, name, settings),
        masked=masked,
        watch=watch,
    )


def _from_batch_env(env: BatchEnv, settings: Mapping[str, Any], watch: Watch) -> Subject:
    """A BatchEnv that exists already: built again from its arguments."""
    args, kwargs = env._arguments
    known = inspect.signature(type(env)).bind(*args, **kwargs).arguments
    chosen = {k: v for k, v in known.items() if k not in ("rows", "settings", "kwargs")}
    for extra in ("settings", "kwargs"):
        chosen |= known.get(extra, {})
    return find(type(env), {**chosen, **settings}, watch)


def _from_builder(
    build: Callable[..., Any],
    name: str,
    reference: str | None,
    settings: Mapping[str, Any],
    builder: str,
    watch: Watch,
) -> Subject:
    """A function or class that builds one foreign environment."""
    made = build()
    kind = _kind_of(made)
    if kind is None:
        raise TypeError(
            f"target: {name} builds a {type(made).__name__}, allowed a BatchEnv, a gymnasium.Env, "
            "or a ParallelEnv or AECEnv of PettingZoo"
        )
    masked = kind == "gym" and hasattr(made.unwrapped, "action_masks")
    rows: Callable[[int], BatchEnv] | None = None
    why = "an environment of PettingZoo has no rows"
    if kind == "gym":
        rows, why = _rows_of(build)
    return Subject(
        name=name,
        kind=kind,
        ours=False,
        one=build,
        rows=rows,
        why_no_rows=why,
        reference=reference,
        settings=settings,
        builder=builder,
        rows_builder=f"{builder.replace('def build(', 'def build_one(')}\n\n\n"
        "def build(rows):\n    return GymBatch(rows, build_one)",
        masked=masked,
        mask_text=_mask_text(made.action_space) if masked else None,
        watch=watch,
    )


def _mask_text(space: Any) -> str:
    mask = "np.asarray(env.unwrapped.action_masks(), np.int8)"
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        return f"tuple(np.split({mask}, np.cumsum(actions.nvec)[:-1]))"
    return mask


def _rows_of(build: Callable[..., Any]) -> tuple[Callable[[int], BatchEnv] | None, str]:
    def rows(count: int) -> BatchEnv:
        return GymBatch(count, build)

    try:
        rows(1).close()
    except TypeError as reason:
        return None, str(reason)
    return rows, ""


def _from_instance(env: Any, settings: Mapping[str, Any], watch: Watch) -> Subject:
    """An environment that exists already: its copies are deep copies."""
    if _kind_of(env) is None:
        raise TypeError(
            f"target: got a {type(env).__name__}, allowed a target, an environment, or a class or "
            "function that builds one"
        )
    if settings:
        raise TypeError(f"settings: got {dict(settings)} for an environment that exists already")
    name = type(env.unwrapped).__name__
    spec = getattr(env, "spec", None)
    if spec is not None and spec.id in gymnasium.registry:
        found = find(spec.id, dict(spec.kwargs), watch)
        found.name = spec.id
        return found

    def build(**more: Any) -> Any:
        if more:
            raise TypeError("an environment that exists already cannot be given a render mode")
        return copy.deepcopy(env)

    builder = (
        f"def build():\n    # Put here what builds your {name}.\n"
        f"    raise NotImplementedError({name!r})"
    )
    return _from_builder(build, name, None, settings, builder, watch)


# ------------------------------------------------------------------ what a program would say


def _arguments(settings: Mapping[str, Any]) -> list[str]:
    return [f"{name}={value!r}" for name, value in settings.items()]


def _text(reference: str | None, name: str) -> str:
    """How a program names a target; by its bare name where it has no reference."""
    return name if reference is None else f'"{_portable(reference)}"'


def _portable(reference: str) -> str:
    place, colon, name = reference.rpartition(":")
    if not place.endswith(".py"):
        return reference
    return f"{Path(place).resolve().as_posix()}{colon}{name}"


def _rows_text(reference: str | None, name: str, settings: Mapping[str, Any]) -> str:
    arguments = ", ".join(["rows", *_arguments(settings)])
    return f"def build(rows):\n    return resolve({_text(reference, name)}).make({arguments})"


def _call_text(reference: str | None, name: str, settings: Mapping[str, Any]) -> str:
    """`def build()` that calls a class or function."""
    called = f"load_object({_text(reference, name)})" if reference is not None else name
    return f"def build():\n    return {called}({', '.join(_arguments(settings))})"
