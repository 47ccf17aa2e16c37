"""Options that several commands share, and what they mean."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An option; repeatable.")
]
Config = Annotated[Path | None, typer.Option("--config", help="Options from a TOML or YAML file.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
Out = Annotated[Path | None, typer.Option("--out", help="The run folder.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Seed; the same seed, the same numbers.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bar.")]
Where = Annotated[
    str, typer.Option("--executor", help="in-process, processes, ray, or auto: the quicker.")
]
Workers = Annotated[
    int | None, typer.Option("--workers", help="Worker processes or Ray tasks at a time.")
]
Address = Annotated[
    str | None, typer.Option("--address", help="Of a Ray cluster; auto: the one of this machine.")
]
TimeLimit = Annotated[
    float | None, typer.Option("--time-limit", help="Seconds a block may take in a worker.")
]
Shard = Annotated[
    str | None, typer.Option("--shard", metavar="I/N", help="Play the blocks i, i + n, ... only.")
]
Track = Annotated[
    list[str] | None,
    typer.Option("--track", help="tensorboard, wandb or mlflow; repeatable."),
]
Strict = Annotated[
    bool, typer.Option("--strict", help="Refuse to go on with a run of another machine.")
]


def settings_of(settings: Sequence[str] | None) -> dict[str, Any]:
    """What `--set` gave, as keyword arguments."""
    from palestra.config import apply_settings

    return apply_settings({}, settings or [])


def executor_of(name: str, workers: int | None, address: str | None, limit: float | None) -> Any:
    """The executor that the options describe."""
    from palestra.executors import EXECUTORS

    given = {"workers": workers, "address": address, "time_limit": limit}
    chosen = EXECUTORS.get(name)
    if chosen is None:
        raise ValueError(f"--executor: got {name!r}, allowed {', '.join(EXECUTORS)}")
    options = {key: value for key, value in given.items() if value is not None}
    for key in options.keys() - getattr(chosen, "__dataclass_fields__", {}).keys():
        raise ValueError(f"--{key.replace('_', '-')}: the executor {name!r} has no such option")
    return chosen(**options)


def shard_of(text: str | None) -> tuple[int, int] | None:
    """`2/8` as (2, 8)."""
    if text is None:
        return None
    index, slash, of = text.partition("/")
    if not (slash and index.isdecimal() and of.isdecimal()):
        raise ValueError(f"--shard: got {text!r}, allowed I/N, such as 0/8")
    return int(index), int(of)
