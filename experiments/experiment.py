"""What an experiment is, and how one is run: options, run folder, claims, report."""

from __future__ import annotations

import dataclasses
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from palestra.claims import Claim, Quantity, all_hold, claims_json, json_number
from palestra.config import ConfigError, apply_settings, build, dump_toml, load_config, resolved
from palestra.registry import UnknownName, did_you_mean, load_object, squash
from palestra.report import Report
from palestra.store import RunFolder, named_files, write_atomic

PRESETS = ("full", "smoke")


@dataclass(frozen=True)
class Findings:
    """What an experiment found.

    Attributes:
        columns: heads of the published table.
        rows: its rows; cells are numbers, texts or `palestra.claims.Quantity`.
        claims: each with its bound.
        report: the page, complete but for table and claims of this object.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    claims: Sequence[Claim]
    report: Report


class Experiment(ABC):
    """An experiment: a frozen dataclass whose fields are its options.

    `smoke` holds the options of the preset that ends within a minute.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    smoke: ClassVar[Mapping[str, Any]] = {}

    @abstractmethod
    def run(self, folder: Path, *, progress: bool) -> Findings:
        """Do the work below `folder`, resuming what is there."""


@dataclass(frozen=True)
class Outcome:
    """A run that ended: its folder, its findings, and whether every claim holds."""

    folder: Path
    experiment: Experiment
    findings: Findings
    document: dict[str, Any] = field(repr=False)

    @property
    def holds(self) -> bool:
        """Whether no applicable claim is refuted."""
        return all_hold(self.findings.claims)


def names() -> dict[str, str]:
    """Experiments by name -> "module:class". Imports none of them."""
    from . import CATALOGUE

    return dict(CATALOGUE)


def find(name: str) -> type[Experiment]:
    """The class of an experiment.

    Raises:
        UnknownName: there is none of this name.
    """
    by_name = {squash(known): known for known in names()}
    if squash(name) not in by_name:
        raise UnknownName(
            f"experiment: there is no {name!r}{did_you_mean(name, names())} "
            f"There are: {', '.join(names())}"
        )
    return load_object(names()[by_name[squash(name)]])  # type: ignore[no-any-return]


def configure(
    name: str,
    preset: str = "full",
    config: str | Path | None = None,
    settings: Sequence[str] = (),
    seed: int | None = None,
) -> Experiment:
    """An experiment with its options: preset, then file, then `key=value`, then the seed.

    Raises:
        UnknownName: no such experiment.
        ConfigError: an unknown option, or a value that does not fit.
    """
    cls = find(name)
    if preset not in PRESETS:
        raise ConfigError(f"preset: got {preset!r}, allowed {', '.join(PRESETS)}")
    options: dict[str, Any] = dict(cls.smoke) if preset == "smoke" else {}
    if config is not None:
        options |= load_config(config)
    options = apply_settings(options, settings)
    if seed is not None:
        options["seed"] = seed
    return build(cls, options)


def run(experiment: Experiment, folder: str | Path, *, progress: bool = False) -> Outcome:
    """Run an experiment in a folder, or go on with it there.

    The folder gets `run.json`, `config.toml` (which gives the same run again), `claims.json`,
    `table.json` and `report.html`; finished parts are not computed again. A run that is refused
    before it has any leaves no folder.
    """
    path = Path(folder)
    options = resolved(experiment)
    store = RunFolder.create_or_resume(
        path,
        {
            "kind": "experiment",
            "experiment": experiment.name,
            "options": options,
            "files": named_files(options),
        },
    )
    with store.lock(), store.withdrawn_if_empty():
        store.write("config.toml", dump_toml(options).encode())
        findings = experiment.run(path, progress=progress)
        if not findings.claims:
            raise TypeError(f"{experiment.name}: an experiment makes at least one claim")
        claims = claims_json(findings.claims)
        document = {
            "experiment": experiment.name,
            "options": options,
            "folder": str(path),
            "table": table_json(findings),
            **claims,
        }
        write_atomic(path / "claims.json", _encoded(claims))
        write_atomic(path / "table.json", _encoded(document["table"]))
        findings.report.write(path / "report.html")
        if not store.finished:
            store.finish()
    return Outcome(path, experiment, findings, document)


def table_json(findings: Findings) -> list[dict[str, Any]]:
    """The table as plain JSON, a mapping a row; quantities with value, interval and unit."""
    return [
        {c: _plain(cell) for c, cell in zip(findings.columns, row, strict=True)}
        for row in findings.rows
    ]


def _plain(cell: Any) -> Any:
    if isinstance(cell, Quantity):
        cell = dataclasses.asdict(cell)
        return {name: _plain(value) for name, value in cell.items()}
    if isinstance(cell, tuple | list):
        return [_plain(value) for value in cell]
    if isinstance(cell, np.generic):
        cell = cell.item()
    # JSON has no such numbers; as text, like in claims.json
    return json_number(cell) if isinstance(cell, float) else cell


def _encoded(document: Any) -> bytes:
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode()
