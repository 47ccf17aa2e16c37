"""The page of all runs below a folder: `palestra report --all`."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from palestra.claims import Quantity, format_number
from palestra.report import Cell, Link, Report
from palestra.saved import Saved, load

COLUMNS = (
    "run", "kind", "environment", "learner or policy", "seed", "score", "of", "state", "begun",
)  # fmt: skip
INSIDE = ("checkpoints", "episodes", "steps")  # folders of a run that hold no runs


def write_index(folder: Path, out: Path | None = None) -> tuple[Path, list[dict[str, Any]]]:
    """Write `index.html`: a row a run, however deep, that can be filtered and sorted.

    Args:
        folder: where to look; what is broken or foreign is listed as such.
        out: where to write; by default `index.html` in the folder.

    Returns:
        The page, and its rows as plain data.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    target = folder / "index.html" if out is None else out
    found = [_row(run, folder, target) for run in find_runs(folder)]
    page = Report(f"Runs in {folder}", subtitle=f"{len(found)} runs", wide=True)
    if found:
        page.catalogue("All runs; a name leads to its report", COLUMNS, found)
        page.text("A run without a link has no report yet: palestra report RUN writes it.")
    else:
        page.text("There are none.")
    written = page.write(target)
    return written, [dict(zip(COLUMNS, map(_plain, row), strict=True)) for row in found]


def find_runs(folder: Path) -> Iterator[Path]:
    """Folders with a `run.json`, in the order of their names."""
    for here, inside, files in os.walk(folder):
        inside[:] = sorted(n for n in inside if n not in INSIDE and not n.startswith("."))
        if "run.json" in files:
            yield Path(here)


def _row(path: Path, folder: Path, page: Path) -> list[Cell]:
    name = path.relative_to(folder).as_posix()
    report = path / "report.html"
    link = os.path.relpath(report, page.parent) if report.is_file() else ""
    begun = datetime.datetime.fromtimestamp((path / "run.json").stat().st_mtime)
    shown = [Link(name if name != "." else path.name, link)]
    when = begun.strftime("%Y-%m-%d %H:%M")
    try:
        return [*shown, *_described(load(path)), when]
    except (OSError, ValueError, LookupError, TypeError) as problem:
        foreign = type(problem) is ValueError
        state = "foreign" if foreign else f"broken: {str(problem).replace(f'{path}/', '')[:200]}"
        return [*shown, None, None, None, None, None, None, state, when]


def _described(run: Saved) -> list[Cell]:
    """Kind, environment, learner or policy, seed, score, what the score is, state."""
    config = run.configuration
    state = "finished" if run.finished else "unfinished"
    environment = str(config.get("environment", "")).removeprefix("palestra/")
    if run.kind == "training":
        points = run.metrics.to_pylist()
        last = points[-1] if points else None
        score = last and _quantity(last["return"], last["return_low"], last["return_high"])
        who = f"{config['algorithm']}, {format_number(config['steps'])} steps"
        return [run.kind, environment, who, config["seed"], score, "return", state]
    if run.kind == "evaluation":
        means = {row["name"]: row for row in run.metrics.to_pylist()}
        mean = means.get("return")
        score = mean and _quantity(mean["estimate"], mean["low"], mean["high"])
        who = f"{config['policy']}, {config['episodes']} episodes"
        return [run.kind, environment, who, config["seed"], score, "return", state]
    if run.kind == "sweep":
        scores = [row for row in run.metrics.to_pylist() if row["score"] is not None]
        best = {"max": max, "min": min}[config["direction"]]
        top = best(scores, key=lambda row: row["score"]) if scores else None
        score = top and _quantity(top["score"], top["low"], top["high"])
        who = (
            f"{config['training'].get('algorithm')}, {config['sampler']}, {config['trials']} trials"
        )
        place = config["training"].get("environment")
        return [run.kind, place, who, config["seed"], score, f"best {config['metric']}", state]
    claims = run.path / "claims.json"
    verdict = "claims"
    if claims.is_file():
        holds = json.loads(claims.read_text(encoding="utf-8")).get("holds")
        verdict = {True: "claims hold", False: "claims REFUTED"}.get(holds, "claims")
    seed = config["options"].get("seed")
    return [run.kind, None, config["experiment"], seed, None, verdict, state]


def _quantity(value: float, low: float | None, high: float | None) -> Quantity:
    return Quantity(value, None if low is None or high is None else (low, high))


def _plain(cell: Cell) -> Any:
    if isinstance(cell, Link):
        return cell.text
    if isinstance(cell, Quantity):
        return {"value": cell.value, "interval": cell.interval}
    return cell
