"""Take results away: a run folder as Arrow tables. Nothing is written, and no code is run."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .safe_files import MalformedFile, strict_json
from .store import CorruptFile, RunFolder

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Saved:
    """A run folder, read. Tables are read, and held against their hashes, when they are asked for.

    Attributes:
        path: the folder.
        kind: "training", "evaluation", "sweep", "experiment", or "comparison" (a folder of
            evaluations).
        finished: whether everything that was asked for is there.
        configuration: the resolved options, as `run.json` has them.
        runs: the runs below it, by name: of a comparison, a sweep or an experiment.
    """

    path: Path
    kind: str
    finished: bool
    configuration: dict[str, Any]
    runs: Mapping[str, Saved] = field(default_factory=dict, repr=False)

    @cached_property
    def episodes(self) -> pa.Table:
        """One row an episode, as far as they are there.

        Of a comparison or an experiment those of all its evaluations, with their name in the
        column `run`; of other runs a table without rows and columns.

        Raises:
            CorruptFile: what stands in the folder is not what was written there.
        """
        import pyarrow as pa

        if self.kind == "evaluation":
            return self._checked().read("episodes")
        parts = [
            run.episodes.add_column(0, "run", [[name] * run.episodes.num_rows])
            for name, run in self.runs.items()
            if run.episodes.num_rows
        ]
        return pa.concat_tables(parts, promote_options="default") if parts else pa.table({})

    @cached_property
    def metrics(self) -> pa.Table:
        """The numbers of the run.

        Of a training its curve, one row an evaluation: `steps`, `return`, `return_low`,
        `return_high` and the mean of every other metric. Of an evaluation one row a column of its
        episodes: `name`, `estimate`, `low`, `high`, `n`, `rule`; of a comparison those of all, with
        `run`. Of a sweep one row a trial. Of an experiment its published table.

        Raises:
            CorruptFile: what stands in the folder is not what was written there.
        """
        import pyarrow as pa

        readers = {
            "training": self._curve,
            "evaluation": self._means,
            "comparison": self._means_of_runs,
            "sweep": self._trials,
            "experiment": self._table,
        }
        rows = readers[self.kind]()
        names = list(dict.fromkeys(name for row in rows for name in row))
        return pa.table({name: _column([row.get(name) for row in rows]) for name in names})

    def _repr_html_(self) -> str:
        """A table for a notebook."""
        from .notebook import table_markup

        title = f"{self.kind} {self.path.name}" + ("" if self.finished else ", not finished")
        table = self.metrics
        rows = [list(row.values()) for row in table.slice(0, 50).to_pylist()]
        return table_markup(title, table.column_names, rows)

    def _checked(self) -> RunFolder:
        folder = RunFolder.open(self.path)
        if folder.finished and (problems := folder.verify()):
            raise CorruptFile(self.path, "; ".join(problems))
        return folder

    def _curve(self) -> list[dict[str, Any]]:
        from .train import learning_progress

        checkpoint = RunFolder.open(self.path).latest("step-")
        points = [] if checkpoint is None else learning_progress(checkpoint)
        return [
            {
                "steps": point["steps"],
                "return": point["mean"],
                "return_low": point["low"],
                "return_high": point["high"],
                **point["metrics"],
            }
            for point in points
        ]

    def _means(self) -> list[dict[str, Any]]:
        from .rollout import Evaluation

        config = self.configuration
        table = self.episodes
        if not table.num_rows:
            return []
        played = Evaluation(config["environment"], config["policy"], config["seed"], table)
        means = played.means()
        return [{"name": name, **(vars(mean) if mean else {})} for name, mean in means.items()]

    def _means_of_runs(self) -> list[dict[str, Any]]:
        return [{"run": name, **row} for name, run in self.runs.items() for row in run._means()]

    def _trials(self) -> list[dict[str, Any]]:
        from .sweep import read_trials

        return [
            {
                "trial": trial.number,
                **trial.parameters,
                "score": trial.score,
                "low": trial.low,
                "high": trial.high,
                "status": trial.status,
            }
            for trial in read_trials(self._checked())
        ]

    def _table(self) -> list[dict[str, Any]]:
        file = self._checked().path / "table.json"
        if not file.is_file():
            return []
        stored = strict_json(file.read_bytes(), str(file))
        if not isinstance(stored, list) or not all(isinstance(row, dict) for row in stored):
            raise CorruptFile(file, "must be a list of rows")
        rows = []
        for row in stored:
            flat: dict[str, Any] = {}
            for name, cell in row.items():
                if isinstance(cell, dict) and "value" in cell:  # a number with its interval
                    low, high = cell.get("interval") or (None, None)
                    flat |= {name: cell["value"], f"{name} low": low, f"{name} high": high}
                else:
                    flat[name] = cell
            rows.append(flat)
        return rows


def load(run: str | os.PathLike[str]) -> Saved:
    """A run folder as tables: of a training, evaluation, comparison, sweep or experiment.

    Args:
        run: the folder; it may be unfinished.

    Raises:
        FileNotFoundError: not a run folder.
        CorruptFile: its `run.json` is damaged.
        ValueError: a run of another program.
    """
    path = Path(run)
    below = {
        file.parent.relative_to(path).as_posix(): load(file.parent)
        for pattern in ("*/run.json", "*/*/run.json")
        for file in sorted(path.glob(pattern))
        if not file.parent.name.startswith(".")
    }
    if not (path / "run.json").exists():
        if below and all(part.kind == "evaluation" for part in below.values()):
            finished = all(part.finished for part in below.values())
            return Saved(path, "comparison", finished, {}, below)
        raise FileNotFoundError(f"{path}: not a run folder: it has no run.json")
    folder = RunFolder.open(path)
    config = folder.config
    kind = config.get("kind")
    if kind not in ("training", "evaluation", "sweep", "experiment"):
        raise ValueError(f"{path}: a run of kind {kind!r}, which palestra does not write")
    known = {"training": _trained, "sweep": _swept}
    finished = known[kind](folder) if kind in known else folder.finished
    return Saved(path, kind, finished, config, below)


def _swept(folder: RunFolder) -> bool:
    from .sweep import read_trials

    trials = read_trials(folder)
    drawn = len(trials) == folder.config["trials"]
    return drawn and all(trial.status != "waiting" for trial in trials)


def _trained(folder: RunFolder) -> bool:
    from .train import learning_progress

    checkpoint = folder.latest("step-")
    try:
        last = learning_progress(checkpoint)[-1]["steps"] if checkpoint is not None else 0
    except MalformedFile:
        return False
    return bool(last >= folder.config["steps"])


def _column(values: list[Any]) -> Any:
    """An Arrow column; what is not of one type is written as text."""
    import pyarrow as pa

    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.array([
            value if value is None or isinstance(value, str) else json.dumps(value)
            for value in values
        ])  # fmt: skip
