"""One registry: which environments there are, and what a target names.

A *target* names an environment everywhere in the same way: a catalogued name (`NMRRelax`,
`nmr-relax` or `palestra/NMRRelax-v0`), a Gymnasium id (`CartPole-v1`), `module:name`,
`path/to/file.py:name`, or the class itself. Looking names up imports nothing of an environment.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.machinery
import importlib.metadata
import importlib.resources
import importlib.util
import inspect
import json
import os
import re
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .batch import BatchEnv

PLUGIN_GROUP = "palestra.envs"
LEADS_ELSEWHERE = re.compile(r"[/\\:.]")  # in a path or reference, never in a name of ours
FILE_MODULE = "palestra_target_"  # how the module of a target's file is called


class UnknownName(ValueError):
    """A name that nothing is registered under; the message suggests near ones."""


@dataclass(frozen=True)
class Entry:
    """A catalogued environment: strings only, so that listing imports nothing.

    Attributes:
        name: the class name, such as "NMRRelax".
        entry_point: "module:class" of the BatchEnv.
        summary: one line for a person.
        agents: whether it has several agents (then it is not registered with Gymnasium).
        version: the version of its dynamics; part of the id.
    """

    name: str
    entry_point: str
    summary: str
    agents: bool = False
    version: int = 0

    @property
    def id(self) -> str:
        """The full id, "palestra/<name>-v<version>"."""
        return f"palestra/{self.name}-v{self.version}"

    @property
    def family(self) -> str:
        """The folder of the family, such as "nmr"."""
        return self.entry_point.split(":")[0].split(".")[2]


@dataclass(frozen=True)
class Anchors:
    """Scores to compare a policy with; measured by `palestra anchors`, stored with the family.

    Attributes:
        metric: the column of the episode table that is scored.
        direction: "max" or "min", which way is better.
        random: mean score of the random policy.
        classical: mean score of the best classical policy.
        classical_name: its name.
        bound: a bound or optimum that no policy passes on average, or None if none is known.
        bound_name: where it comes from.
        command: the command that measured them.
    """

    metric: str
    direction: str
    random: float
    classical: float
    classical_name: str
    bound: float | None
    bound_name: str
    command: str

    def normalised(self, score: float) -> float:
        """The score on a scale where random is 0 and the bound (or best classical) is 1."""
        best = self.classical if self.bound is None else self.bound
        return (score - self.random) / (best - self.random)


@dataclass(frozen=True)
class Plugin:
    """An environment that another distribution offers under `palestra.envs`."""

    name: str
    entry_point: str
    distribution: str
    problem: str = ""


@dataclass(frozen=True)
class Target:
    """What a target resolves to.

    Attributes:
        name: a short name for tables and folders.
        reference: the target as a string that another process can resolve; None for an object
            that has no such name (a lambda, a class in an interactive session).
        build: `build(rows, **settings) -> BatchEnv`.
        entry: the catalogue's entry, if it is one.
    """

    name: str
    reference: str | None
    build: Callable[..., BatchEnv]
    entry: Entry | None = None

    def make(
        self,
        rows: int,
        /,
        max_episode_steps: int | None = None,
        wrappers: Sequence[str] = (),
        **settings: Any,
    ) -> BatchEnv:
        """Build the environment.

        Args:
            rows: number of copies.
            max_episode_steps: can only shorten the horizon.
            wrappers: names of `palestra.wrappers.WRAPPERS` or "module:Class", innermost first.
            settings: of the environment.

        Raises:
            TypeError: a setting that the environment does not have, naming those it has; wrappers
                that are no list of names; something that builds no environment.
            UnknownName: a wrapper that there is not.
            ValueError: max_episode_steps below 1 or beyond 32 bits.
        """
        if "rows" in settings:
            raise TypeError(
                f"rows: got {settings['rows']!r} as a setting of {self.name}, which it is not: "
                "how many copies play is a matter of the caller (its option rows or width)"
            )
        classes = [_wrapper(name) for name in _wrapper_names(wrappers)]
        if max_episode_steps is not None:
            whole = isinstance(max_episode_steps, int) and not isinstance(max_episode_steps, bool)
            if not whole or not 1 <= max_episode_steps < 2**32:
                raise ValueError(
                    f"max_episode_steps: got {max_episode_steps!r}, "
                    "allowed an integer of at least 1 and below 2**32"
                )
        env = self.build(rows, **settings)
        for name, wrap in zip(wrappers, classes, strict=True):
            env = _batch_env(wrap(env), f"wrappers: {name!r} makes", "a wrapper makes a BatchEnv")
        if getattr(env, "rows", rows) != rows:
            raise ValueError(
                f"target: {self.name} builds an environment of {env.rows} rows, and {rows} were "
                "asked for; its __init__ passes rows on: super().__init__(rows, ...)"
            )
        if max_episode_steps is not None:
            env.horizon = min(max_episode_steps, env.horizon or max_episode_steps)
        return env


def _wrapper_names(wrappers: Any) -> Sequence[str]:
    listed = isinstance(wrappers, Sequence) and not isinstance(wrappers, str)
    if not listed or not all(isinstance(name, str) for name in wrappers):
        raise TypeError(f"wrappers: got {wrappers!r}, allowed a list of names, innermost first")
    return wrappers  # type: ignore[no-any-return]


def _wrapper(name: str) -> Callable[[BatchEnv], BatchEnv]:
    from .wrappers import WRAPPERS

    if name not in WRAPPERS and ":" not in name:
        raise UnknownName(
            f"wrappers: got {name!r}{did_you_mean(name, WRAPPERS)} "
            f"Allowed: {', '.join(WRAPPERS)}, module:Class or path/to/file.py:Class"
        )
    found = load_object(WRAPPERS.get(name, name))
    if not callable(found):
        raise TypeError(f"wrappers: {name!r} is a {type(found).__name__}, allowed a class")
    return found  # type: ignore[no-any-return]


@cache
def catalogue() -> dict[str, Entry]:
    """The environments that ship with palestra, by name."""
    entries: Iterable[Entry] = importlib.import_module("palestra.envs").CATALOGUE
    return {entry.name: entry for entry in entries}


def plugins(load: bool = False) -> list[Plugin]:
    """Environments that other distributions offer, from their metadata.

    Args:
        load: import each one, and report the broken ones in `problem`.
    """
    found = []
    taken = {squash(name) for name in catalogue()}
    for point in importlib.metadata.entry_points(group=PLUGIN_GROUP):
        distribution = point.dist.name if point.dist is not None else "unknown"
        problem = ""
        if squash(point.name) in taken:
            problem = f"refused: the name {point.name!r} is taken"
        elif load:
            try:
                point.load()
            except Exception as reason:  # a broken plug-in is listed, whatever broke it
                problem = f"broken: {type(reason).__name__}: {reason}"
        taken.add(squash(point.name))
        found.append(Plugin(point.name, point.value, distribution, problem))
    return found


def squash(name: str) -> str:
    """A name without case and punctuation: `nmr-relax` and `NMRRelax` are the same."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def kebab(name: str) -> str:
    """`NMRRelax` as the command line writes it: `nmr-relax`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name).lower()


def resolve(target: Any) -> Target:
    """What a target names; see the module for the grammar.

    Args:
        target: a string, a BatchEnv class, a function `f(rows, **settings)` that builds one, a
            `gymnasium.Env` class or a function that builds a single environment.

    Raises:
        UnknownName: nothing has this name; near names are suggested.
        TypeError: an object that is no environment.
        ImportError: the module or file of the target cannot be imported.
    """
    if isinstance(target, Target):
        return target
    if isinstance(target, Entry):
        return _from_entry(target)
    if not isinstance(target, str):
        return _from_object(target, _reference_of(target))
    if entry := _catalogued(target):
        return _from_entry(entry)
    for plugin in plugins():
        if squash(plugin.name) == squash(target) and not plugin.problem:
            return _from_object(load_object(plugin.entry_point), plugin.entry_point, plugin.name)
    if ":" in target and not target.startswith("gymnasium:"):
        return _from_object(load_object(target), target)
    return _from_gymnasium(target)


def is_registered(target: str) -> bool:
    """Whether a target is a registered name, so that resolving it runs no code of a stranger.

    What a run folder names may be resolved only then: its files come from anywhere.
    """
    import gymnasium

    try:
        known = _catalogued(target) is not None
    except UnknownName:
        return False
    plugged = any(squash(p.name) == squash(target) and not p.problem for p in plugins())
    return known or plugged or (target in gymnasium.registry and ":" not in target)


def _catalogued(target: str) -> Entry | None:
    by_name = {squash(name): entry for name, entry in catalogue().items()}
    full = re.fullmatch(r"palestra/(.+?)(?:-v(\d+))?", target)
    if not full and LEADS_ELSEWHERE.search(target):
        return None
    entry = by_name.get(squash(full[1] if full else target))
    if full and entry and full[2] is not None and int(full[2]) != entry.version:
        raise UnknownName(f"target: got {target!r}; the version that ships is {entry.id!r}")
    if full and not entry:
        raise UnknownName(f"target: there is no {target!r}{did_you_mean(full[1], catalogue())}")
    return entry


def _from_entry(entry: Entry) -> Target:
    def build(rows: int, **settings: Any) -> BatchEnv:
        return _construct(load_object(entry.entry_point), entry.name, rows, settings)

    return Target(entry.name, entry.id, build, entry)


def _from_gymnasium(target: str) -> Target:
    import gymnasium

    name = target.removeprefix("gymnasium:")
    known = [spec for spec in gymnasium.registry if "/" not in spec or "palestra" not in spec]
    if name not in gymnasium.registry:
        mine = [*catalogue(), *(kebab(n) for n in catalogue()), *(p.name for p in plugins())]
        raise UnknownName(
            f"target: nothing is called {target!r}{did_you_mean(target, [*mine, *known])} "
            "A target is a name that `palestra list` shows, a Gymnasium id, module:name, or "
            "path/to/file.py:name."
        )

    def build(rows: int, **settings: Any) -> BatchEnv:
        from .gym_batch import GymBatch

        return GymBatch(rows, name, **settings)

    return Target(name, name, build)


def _from_object(value: Any, reference: str | None, name: str | None = None) -> Target:
    import gymnasium

    from .batch import BatchEnv
    from .gym_batch import GymBatch

    if not callable(value):
        raise TypeError(
            f"target: got {type(value).__name__}, expected a BatchEnv class, a gymnasium.Env "
            "class, or a function that builds one"
        )
    name = str(name or getattr(value, "__name__", type(value).__name__))
    is_class = isinstance(value, type)
    if is_class and not issubclass(value, BatchEnv | gymnasium.Env):
        raise TypeError(f"target: {name} is neither a BatchEnv nor a gymnasium.Env")
    if (is_class and issubclass(value, BatchEnv)) or (not is_class and takes_rows(value)):
        return Target(name, reference, lambda rows, **s: _construct(value, name, rows, s))
    return Target(name, reference, lambda rows, **s: GymBatch(rows, value, **s))


def takes_rows(function: Callable[..., Any]) -> bool:
    """Whether a function builds a BatchEnv: its first parameter is called `rows`."""
    parameters = list(inspect.signature(function).parameters)
    return bool(parameters) and parameters[0] == "rows"


def _construct(
    build: Callable[..., Any], name: str, rows: int, settings: dict[str, Any]
) -> BatchEnv:
    parameters = inspect.signature(build).parameters
    if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        known = [p for p in parameters if p != "rows"]
        for setting in settings.keys() - set(known):
            raise TypeError(
                f"{name} has no setting {setting!r}{did_you_mean(setting, known)} "
                f"It has: {', '.join(known)}"
            )
    said = f"target: {name} builds"
    return _batch_env(build(rows, **settings), said, "a target with rows builds a BatchEnv")


def _batch_env(made: Any, said: str, expected: str) -> BatchEnv:
    from .batch import BatchEnv

    if not isinstance(made, BatchEnv):
        kind = type(made).__name__
        raise TypeError(f"{said} {'an' if kind[0] in 'aeiou' else 'a'} {kind}; {expected}")
    return made


def _reference_of(value: Any) -> str | None:
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if module in (None, "__main__") or name is None or not re.fullmatch(r"[\w.]+", name):
        return None
    return f"{module}:{name}"


def load_object(reference: str) -> Any:
    """Import `module:name` or `path/to/file.py:name`. This runs the module's code.

    Raises:
        ImportError: no such module, file or name; the message says which.
    """
    place, _, name = reference.rpartition(":")
    if not place or not name or not all(name.split(".")):
        raise ImportError(f"{reference!r}: expected module:name or path/to/file.py:name")
    module = _load_file(Path(place)) if place.endswith(".py") else _import(place)
    value = module
    for part in name.split("."):
        if not hasattr(value, part):
            near = [n for n in vars(module) if not n.startswith("_")]
            raise ImportError(f"{place} has no {name!r}{did_you_mean(name, near)}")
        value = getattr(value, part)
    return value


def _import(name: str) -> Any:
    if not all(part.isidentifier() for part in name.split(".")):
        raise ImportError(
            f"{name!r} is not the name of a module; allowed names joined by single dots, or a "
            "path that ends in .py"
        )
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name is not None and name.startswith(missing.name):
            raise ImportError(f"there is no module {name!r} to import") from None
        raise


def _load_file(path: Path) -> Any:
    path = path.resolve()
    if not path.is_file():
        raise ImportError(f"there is no file {path}")
    # one name a path and content, so that a second load gives the same classes and pickles find
    # them, but a file that was edited in between gives its new ones
    source = path.read_bytes()
    digest = hashlib.sha256(os.fsencode(path) + b"\0" + source).hexdigest()[:32]
    name = f"{FILE_MODULE}{digest}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path, loader=_Source(name, path, source))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


class _Source(importlib.machinery.SourceFileLoader):
    """Loads a file from bytes already read: compiled code on disk may be that of an older edit."""

    def __init__(self, name: str, path: Path, source: bytes) -> None:
        super().__init__(name, str(path))
        self.source = source

    def get_code(self, fullname: str) -> types.CodeType:
        """The code of the bytes."""
        code: types.CodeType = self.source_to_code(self.source, self.path)
        return code


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence: a full stop, before it the nearest known name if one is near."""
    by_squashed = {squash(k): k for k in known}
    near = difflib.get_close_matches(squash(name), by_squashed, n=1, cutoff=0.6)
    return f" (did you mean {by_squashed[near[0]]!r}?)." if near else "."


def anchors_of(entry: Entry) -> Anchors | None:
    """The anchors stored with the family, or None if none were measured."""
    package = entry.entry_point.split(":")[0].rsplit(".", 1)[0]
    stored = importlib.resources.files(package) / "data" / "anchors.json"
    if not stored.is_file():
        return None
    record = json.loads(stored.read_text(encoding="utf-8")).get(entry.name)
    return None if record is None else Anchors(**record)


def register_with_gymnasium() -> None:
    """Register the catalogue with Gymnasium: strings only, nothing is imported."""
    import gymnasium

    for entry in catalogue().values():
        if not entry.agents and entry.id not in gymnasium.registry:
            gymnasium.register(
                entry.id,
                entry_point="palestra.views:gym_entry",
                vector_entry_point="palestra.views:vector_entry",
                kwargs={"target": entry.id},
            )
