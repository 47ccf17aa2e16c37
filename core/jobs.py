"""A run as references and numbers, which any process can turn into a player of its blocks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .batch import BatchEnv
from .code_identity import code_files
from .executors import Errand, Work
from .play import Advance, Player, Span, one_thread
from .policy_identity import fingerprint
from .policy_loading import load_policy, policy_code, registered_name
from .registry import Target, resolve


class WorkerDiffers(RuntimeError):
    """A worker would not play the same: another policy, another path. The message says what."""


@dataclass(frozen=True)
class Job:
    """What is played. See `palestra.rollout.evaluate` for the arguments of the same names.

    Attributes:
        environment: a target; in another process it is resolved again.
        settings: of the environment.
        policy: a reference.
        fingerprint: of the policy that the first process loaded; a worker's must be the same.
        path: that the first process took, likewise.
        code: SHA-256 of the files of code that are named, likewise; see `named_code`.
    """

    environment: str
    settings: Mapping[str, Any]
    policy: str
    width: int
    seed: int
    deterministic: bool
    max_steps: int | None
    fast: bool
    record: bool = False
    fingerprint: str | None = None
    path: str = ""
    code: Mapping[str, str] = field(default_factory=dict)


def named_code(environment: str, policy: Any, settings: Mapping[str, Any]) -> dict[str, str]:
    """SHA-256 of the files of code that environment, policy and wrappers of a run name."""
    wrappers = {"wrappers": settings.get("wrappers", ())}
    policy = policy_code(policy)
    return code_files({"environment": environment, "policy": policy, "settings": wrappers})


@dataclass(frozen=True)
class Stage:
    """A job that is ready to be played.

    Attributes:
        player: plays it.
        fingerprint: of the policy.
        path: "predict", or "fast" where the weights of a network were read and run directly.
        reason: why this path was taken.
    """

    player: Player
    fingerprint: str | None
    path: str
    reason: str


@contextlib.contextmanager
def opened(job: Job, where: Target, policy: Any) -> Iterator[Stage]:
    """The stage of a job; its environment is closed at the end."""
    env = where.make(job.width, **job.settings)
    try:
        with one_thread():
            stage = _set(job, where.name, env, policy)
        yield stage
    finally:
        env.close()


def _set(job: Job, name: str, env: BatchEnv, policy: Any) -> Stage:
    loaded = load_policy(policy, env)
    chosen, path, reason = _chosen_path(loaded, env, job.fast and job.deterministic)
    player = Player(name, env, chosen, job.seed, job.deterministic, job.max_steps, job.record)
    return Stage(player, fingerprint(loaded), path, reason)


def _chosen_path(policy: Any, env: BatchEnv, fast: bool) -> tuple[Any, str, str]:
    if not fast:
        return policy, "predict", "the fast path was not asked for"
    from .fast_policy import fast_policy

    quick, report = fast_policy(policy, env.rows)
    if quick is None:
        return policy, "predict", report.reason
    return quick, "fast", report.reason


def block_work(job: Job, stage: Stage, where: Target, policy: Any, advance: Advance) -> Work:
    """The blocks of a job as work for an executor: span -> the files of its tables, by kind.

    Args:
        job: what is played.
        stage: the same, ready in this process.
        where: its target.
        policy: as the caller gave it.
        advance: told how many episodes have ended in this process.
    """
    reason = _why_it_stays(where, policy, job.settings)
    travelling = replace(
        job,
        environment=_absolute(job.environment),
        settings=_absolute_files(job.settings),
        policy=_absolute_policy(job.policy),
        fingerprint=stage.fingerprint,
        path=stage.path,
    )
    return Work(
        here=lambda span: _encoded(stage.player.play(span, advance)),
        elsewhere=None if reason else Errand(play_block, set_stage, travelling),
        reason=reason,
        name=lambda span: f"{where.name}: {span}",
    )


def _why_it_stays(where: Target, policy: Any, settings: Mapping[str, Any]) -> str:
    """Why a job cannot go to another process; empty if it can."""
    if where.reference is None:
        return (
            f"target: {where.name} is an object that no other process can import by name; put it "
            "in a file and give file.py:Name, or module:Name"
        )
    if not isinstance(policy, str | Path):
        return (
            f"policy: got a {type(policy).__name__} object; give a reference: a name, a run "
            "folder, file.py:name, module:name, or what palestra.policy_files.save_policy writes"
        )
    from .disk import to_json

    try:
        to_json(dict(settings))
    except (TypeError, ValueError) as problem:
        return f"settings: {problem}; give plain values, or the path of a file"
    return ""


def _absolute(reference: str) -> str:
    """A reference that holds in any working directory."""
    place, colon, name = reference.rpartition(":")
    if colon and place.endswith(".py"):
        return f"{Path(place).resolve()}:{name}"
    return reference


def _absolute_policy(reference: str) -> str:
    if registered_name(reference) is not None:
        return reference
    path = Path(reference)
    return str(path.resolve()) if path.exists() else _absolute(reference)


def _absolute_files(settings: Mapping[str, Any]) -> dict[str, Any]:
    def absolute(value: Any) -> Any:
        if isinstance(value, Mapping):
            return _absolute_files(value)
        if isinstance(value, str | Path) and Path(value).suffix and Path(value).is_file():
            return str(Path(value).resolve())
        return value

    return {name: absolute(value) for name, value in settings.items()}


def _encoded(tables: Mapping[str, Any]) -> dict[str, bytes]:
    from .blocks import encode_block

    return {kind: encode_block(table) for kind, table in tables.items()}


# --- inside a worker ------------------------------------------------------------------------------

_on_stage: list[tuple[Job, Stage]] = []  # at most one: a worker plays many blocks of one job


def set_stage(job: Job) -> Stage:
    """The stage of a job in this process; kept until another job comes.

    Raises:
        WorkerDiffers: code, policy or path are not those of the process that sent the job.
    """
    if _on_stage and _on_stage[0][0] == job:
        return _on_stage[0][1]
    if _on_stage:
        _on_stage.pop()[1].player.env.close()
    here, there = named_code(job.environment, job.policy, job.settings), job.code
    if changed := [key for key in there if here.get(key) != there[key]]:
        raise WorkerDiffers(
            f"{', '.join(changed)}: the code is not what it was when the run began; was a file "
            "edited meanwhile? The results would not be the same"
        )
    where = resolve(job.environment)
    env = where.make(job.width, **job.settings)
    with one_thread():
        stage = _set(job, where.name, env, job.policy)
    for what in ("fingerprint", "path"):
        here, there = getattr(stage, what), getattr(job, what)
        if here != there:
            raise WorkerDiffers(
                f"policy {job.policy}: its {what} is {here} in a worker and {there} in the process "
                "that began the run; the results would not be the same"
            )
    _on_stage.append((job, stage))
    return stage


def play_block(job: Job, span: Span) -> dict[str, bytes]:
    """Play a block of a job; the files of its tables, by kind."""
    player = set_stage(job).player
    with one_thread():
        return _encoded(player.play(span))
