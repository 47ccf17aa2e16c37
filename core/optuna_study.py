"""Optuna's tree-structured Parzen estimator, and a study of a sweep that Optuna reads.

The sweep's own `trials.json` is what counts. Optuna draws from a study in memory that is built from
it, with a sampler seeded by the number of the batch, so that a draw is a function of the sweep and
of the results before it: nothing else is carried from process to process. The study on disk is
written along, by finished trials only. None can therefore be left RUNNING in it by a process that
was killed (optuna issues 485 and 6283), and no lock of Optuna's is held between two writes (5921).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .disk import disk, remove_tree, temporary_name
from .search_space import Choices, Point, Space

DATABASE = "study.sqlite3"

Told = tuple[Point, float | None]  # a point and its score; None: it failed


def next_points(
    space: Space, seed: int, direction: str, told: Sequence[Told], count: int
) -> list[Point]:
    """The next batch of points, drawn together, given the results of all batches before.

    Args:
        space: what to draw from.
        seed: of the sweep.
        direction: "max" or "min".
        told: every point so far, in the order of their numbers.
        count: points in the batch.

    Raises:
        ImportError: Optuna is not installed.
    """
    optuna = _optuna()
    with _quiet(optuna):
        digest = hashlib.blake2b(f"{seed}|{len(told)}".encode(), digest_size=4).digest()
        sampler = optuna.samplers.TPESampler(
            seed=int.from_bytes(digest, "little"), constant_liar=True
        )
        study = optuna.create_study(sampler=sampler, direction=_DIRECTIONS[direction])
        study.add_trials([_frozen(optuna, space, point, score) for point, score in told])
        distributions = _distributions(optuna, space)
        drawn = [study.ask(distributions).params for _ in range(count)]
    return [_decoded(space, parameters) for parameters in drawn]


class StoredStudy:
    """The study of a sweep in a database, for Optuna's own tools to read.

    Args:
        folder: of the sweep.
        storage: the URL of a database; None takes a SQLite file in the folder.
        name: of the study, where others may share the database.
        space: of the sweep.
        direction: "max" or "min".
    """

    def __init__(
        self, folder: Path, storage: str | None, name: str, space: Space, direction: str
    ) -> None:
        self.optuna = _optuna()
        self.space = space
        options = {"study_name": name, "direction": _DIRECTIONS[direction], "load_if_exists": True}
        with _quiet(self.optuna):
            if storage is None:
                file = folder / DATABASE
                if not file.exists():
                    self._create(file, options)
                storage = _sqlite(file)
            self.study = self.optuna.create_study(storage=storage, **options)

    def _create(self, file: Path, options: dict[str, Any]) -> None:
        """Make the database under another name: killed in between, none stands there half made."""
        temporary = temporary_name(file.parent)
        disk.make_folder(temporary)
        try:
            storage = self.optuna.storages.RDBStorage(_sqlite(temporary / DATABASE))
            self.optuna.create_study(storage=storage, **options)
            storage.remove_session()
            storage.engine.dispose()
            disk.rename(temporary / DATABASE, file)
        finally:
            remove_tree(temporary)

    def tell(self, told: Sequence[Told]) -> None:
        """Add what the study does not hold yet; each trial in one transaction."""
        with _quiet(self.optuna):
            there = len(self.study.get_trials(deepcopy=False))
            for point, score in told[there:]:
                self.study.add_trial(_frozen(self.optuna, self.space, point, score))


_DIRECTIONS = {"max": "maximize", "min": "minimize"}


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise ImportError(
            "sampler: 'tpe' needs Optuna, which is not installed: pip install 'palestra[tune]'"
        ) from None
    return optuna


@contextlib.contextmanager
def _quiet(optuna: Any) -> Iterator[None]:
    """Optuna says on stderr what the sweep's table says."""
    usual = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(usual)


def _sqlite(file: Path) -> str:
    return f"sqlite:///{file.resolve()}"


def _distributions(optuna: Any, space: Space) -> dict[str, Any]:
    kinds = optuna.distributions
    found: dict[str, Any] = {}
    for key, values in sorted(space.items()):  # a draw does not depend on the order in a file
        if isinstance(values, Choices):
            found[key] = kinds.CategoricalDistribution([_text(v) for v in values.values])
        elif values.whole:
            step = values.step or 1
            found[key] = kinds.IntDistribution(values.low, values.high, values.log, step)
        else:
            found[key] = kinds.FloatDistribution(values.low, values.high, values.log, values.step)
    return found


def _text(choice: Any) -> Any:
    """A choice as Optuna stores it: lists and tables as JSON."""
    return json.dumps(choice) if isinstance(choice, list | dict) else choice


def _decoded(space: Space, parameters: dict[str, Any]) -> Point:
    point: Point = {}
    for key, values in space.items():  # in the order of the space
        point[key] = parameters[key]
        if isinstance(values, Choices):
            texts = [_text(value) for value in values.values]
            point[key] = values.values[texts.index(parameters[key])]
    return point


def _frozen(optuna: Any, space: Space, point: Point, score: float | None) -> Any:
    states = optuna.trial.TrialState
    parameters = {
        key: _text(value) if isinstance(space[key], Choices) else value
        for key, value in point.items()
    }
    return optuna.trial.create_trial(
        state=states.FAIL if score is None else states.COMPLETE,
        value=score,
        params=parameters,
        distributions=_distributions(optuna, space),
    )
