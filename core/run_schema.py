"""What `run.json` holds: one table of fields for every kind of run that is written here.

Whoever reads a run folder reads it through the store, and the store checks it by this table, so
that no reader meets a field that is missing or of another type. Only what is read is demanded;
further fields are allowed. A run of another kind is somebody else's and is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from .config import ConfigError, checked

Table = dict[str, Any]

FIELDS: dict[str, dict[str, Any]] = {  # kind -> field of `config` -> type
    "training": {
        "environment": str,
        "algorithm": str,
        "policy": str,
        "steps": int,
        "seed": int,
        "rows": int,
        "settings": Table,
        "wrappers": list[str],
        "hyperparameters": Table,
        "normalise_observations": bool,
        "normalise_rewards": bool,
        "device": str,
        "evaluate_every": int,
        "evaluation_episodes": int,
        "evaluation_seed": int,
        "tensorboard": bool,
    },
    "evaluation": {
        "environment": str,
        "settings": Table,
        "policy": str,
        "policy_sha256": str | None,
        "seed": int,
        "episodes": int,
        "width": int,
        "block": int,
        "deterministic": bool,
    },
    "experiment": {"experiment": str, "options": Table},
    "sweep": {
        "training": Table,
        "space": Table,
        "sampler": str,
        "trials": int,
        "seed": int,
        "metric": str,
        "direction": Literal["max", "min"],
    },
}
RECORDS = ("trajectories",)
RECORDED: dict[str, Any] = {  # what an evaluation with steps has beyond its fields
    "record": str,
    "observation_space": Table,
    "action_space": Table,
    "agents": list[str],
}
COUNTS = (
    "steps",
    "rows",
    "evaluate_every",
    "evaluation_episodes",
    "episodes",
    "width",
    "block",
    "trials",
)
SEEDS = ("seed", "evaluation_seed")


def check_run(document: Mapping[str, Any]) -> None:
    """Check the document of a run.

    Raises:
        ConfigError: a field that is missing, of another type or out of range; the message names
            the field and what is allowed.
    """
    config = checked(document, {"config": Table})["config"]
    kind = config.get("kind")
    if not isinstance(kind, str) or kind not in FIELDS:
        return
    fields = checked(config, {"machine": Table, **FIELDS[kind]}, "config")
    if kind == "evaluation" and "record" in config:
        record = checked(config, RECORDED, "config")["record"]
        if record not in RECORDS:
            allowed = ", ".join(map(repr, RECORDS))
            raise ConfigError(f"config.record = {record!r}: must be {allowed}, or absent")
    for name, hint in FIELDS[kind].items():
        if hint is int and type(config[name]) is not int:
            raise ConfigError(f"config.{name} = {config[name]!r}: must be a whole number")
    for name in COUNTS:
        if name in fields and fields[name] < 1:
            raise ConfigError(f"config.{name} = {fields[name]}: must be 1 or more")
    for name in SEEDS:
        if name in fields and not 0 <= fields[name] < 2**64:
            raise ConfigError(f"config.{name} = {fields[name]}: must be from 0 to 2**64 - 1")
