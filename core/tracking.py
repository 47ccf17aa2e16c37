"""Trackers: the curve of a training, as it grows, in TensorBoard, Weights & Biases or MLflow.

Sent are the return and every metric on held-out episodes, the configuration, and one episode as a
moving picture at the end. Nothing depends on a tracker: one that fails is left out, with a warning,
and the training goes on. A resumed training continues the same run of the tracker, whose id stands
in `tracking.json`; points that the tracker has are not sent again.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import tempfile
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .disk import read_json, to_json, write_atomic

if TYPE_CHECKING:
    from .film import Film

FILE = "tracking.json"
PROJECT = "palestra"


class TrackerFailed(UserWarning):
    """A tracker failed and is left out; the training is not affected."""


class Tracker(ABC):
    """Where the points of a run go.

    Args:
        folder: the run folder.
        run: id of the run in the tracker.
        options: the configuration.
        group: the same for all seeds of a configuration.
    """

    def __init__(self, folder: Path, run: str, options: Mapping[str, Any], group: str) -> None:
        self.folder, self.run, self.options, self.group = folder, run, options, group

    @abstractmethod
    def last(self) -> int:
        """The step of the last point that it has; -1 for none."""

    @abstractmethod
    def point(self, steps: int, values: Mapping[str, float]) -> None:
        """Take one point of the curve."""

    @abstractmethod
    def film(self, steps: int, gif: Path) -> None:
        """Take one episode as a moving picture."""

    @abstractmethod
    def close(self) -> None:
        """Nothing comes any more."""


class TensorBoard(Tracker):
    """Event files in `tracking/` of the run folder: `tensorboard --logdir runs` shows all runs."""

    def __init__(self, folder: Path, run: str, options: Mapping[str, Any], group: str) -> None:
        super().__init__(folder, run, options, group)
        from torch.utils.tensorboard import SummaryWriter

        self.place = folder / "tracking"
        begun = self.place.is_dir()
        self.writer: Any = SummaryWriter(str(self.place))
        if not begun:
            lines = "\n".join(f"    {key} = {value!r}" for key, value in flat(options).items())
            self.writer.add_text("configuration", f"group {group}\n\n{lines}", 0)
            self.writer.flush()

    def last(self) -> int:
        """The last step of the event files."""
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(self.place))
        events.Reload()
        if "heldout/return" not in events.Tags()["scalars"]:
            return -1
        return max(int(event.step) for event in events.Scalars("heldout/return"))

    def point(self, steps: int, values: Mapping[str, float]) -> None:
        """Scalars named `heldout/<metric>`, in one record: a kill keeps all of them or none."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        scalars = [Summary.Value(tag=f"heldout/{k}", simple_value=v) for k, v in values.items()]
        self.writer.file_writer.add_summary(Summary(value=scalars), steps)
        self.writer.flush()

    def film(self, steps: int, gif: Path) -> None:
        """An animated image."""
        from PIL import Image
        from tensorboard.compat.proto.summary_pb2 import Summary

        with Image.open(gif) as picture:
            width, height = picture.size
        image = Summary.Image(
            height=height, width=width, colorspace=3, encoded_image_string=gif.read_bytes()
        )
        summary = Summary(value=[Summary.Value(tag="episode", image=image)])
        self.writer.file_writer.add_summary(summary, steps)
        self.writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self.writer.close()


class WeightsAndBiases(Tracker):
    """A run of the project `palestra`; `WANDB_MODE=offline` keeps it in the run folder."""

    def __init__(self, folder: Path, run: str, options: Mapping[str, Any], group: str) -> None:
        super().__init__(folder, run, options, group)
        import wandb

        # as it is set by default, it waits at the end until the network is back
        os.environ.setdefault("WANDB_FINISH_TIMEOUT", "120")
        os.environ.setdefault("WANDB_FINISH_TIMEOUT_RAISES", "true")
        self.wandb: Any = wandb
        self.sent = folder / "wandb" / "sent.json"
        self.steps = self.last()
        self.live: Any = self._begun()

    def _begun(self, attempts: int = 3) -> Any:
        """The run, new or gone on with; one that was killed a moment ago is let go of soon."""
        try:
            return self.wandb.init(
                project=os.environ.get("WANDB_PROJECT", PROJECT),
                group=self.group,
                name=self.folder.name,
                id=self.run,
                resume="allow",
                dir=str(self.folder),
                config=dict(self.options),
            )
        except Exception as problem:
            if "in use" not in str(problem) or attempts == 1:
                raise
        time.sleep(1.0)
        return self._begun(attempts - 1)

    def last(self) -> int:
        """The last step before a clean end. After a kill wandb may have lost what came later.

        What it has not lost is sent twice then; it ignores steps that are not later than its last.
        """
        return int(read_json(self.sent)["steps"]) if self.sent.exists() else -1

    def point(self, steps: int, values: Mapping[str, float]) -> None:
        """One row of the history."""
        self.live.log({f"heldout/{name}": value for name, value in values.items()}, step=steps)
        self.steps = steps

    def film(self, steps: int, gif: Path) -> None:
        """A video."""
        self.live.log({"episode": self.wandb.Video(str(gif), format="gif")}, step=steps)

    def close(self) -> None:
        """Finish the run; then wandb has written everything."""
        self.live.finish()
        write_atomic(self.sent, to_json({"steps": self.steps}))


class MLflow(Tracker):
    """A run of the experiment `palestra`; without `MLFLOW_TRACKING_URI` in `mlruns` beside it."""

    def __init__(self, folder: Path, run: str, options: Mapping[str, Any], group: str) -> None:
        super().__init__(folder, run, options, group)
        where = os.environ.get("MLFLOW_TRACKING_URI")
        if where is None:
            where = (folder.resolve().parent / "mlruns").as_uri()
        # as it is set by default, a server that is away would keep the training for four minutes
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        if where.startswith("file:"):  # MLflow asks to be told that files are wanted
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        from mlflow import MlflowClient

        self.client: Any = MlflowClient(tracking_uri=where)
        found = self.client.search_runs(
            [self._experiment()], f"tags.`palestra.run` = '{run}'", max_results=1
        )
        self.had: dict[str, int] = {}
        if found:
            self.id = found[0].info.run_id
            self.client.update_run(self.id, status="RUNNING")
            self.had = {name: self._last(name) for name in found[0].data.metrics}
            return
        made = self.client.create_run(
            self._experiment(), run_name=folder.name, tags={"palestra.run": run, "group": group}
        )
        self.id = made.info.run_id
        for key, value in flat(options).items():
            self.client.log_param(self.id, key, str(value)[:500])

    def _experiment(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        there = self.client.get_experiment_by_name(name)
        return str(there.experiment_id if there else self.client.create_experiment(name))

    def last(self) -> int:
        """The last step of the return, which comes last of a point."""
        return self.had.get("heldout/return", -1)

    def _last(self, name: str) -> int:
        history = self.client.get_metric_history(self.id, name)
        return max((int(one.step) for one in history), default=-1)

    def point(self, steps: int, values: Mapping[str, float]) -> None:
        """Metrics named `heldout/<metric>`; of a point that a kill cut short, what is missing."""
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        named = {f"heldout/{name}": values[name] for name in sorted(values, key="return".__eq__)}
        metrics = [
            Metric(name, value, now, steps)
            for name, value in named.items()
            if self.had.get(name, -1) < steps
        ]
        self.client.log_batch(self.id, metrics=metrics)

    def film(self, steps: int, gif: Path) -> None:
        """An artifact."""
        self.client.log_artifact(self.id, str(gif))

    def close(self) -> None:
        """End the run."""
        self.client.set_terminated(self.id)


TRACKERS: dict[str, tuple[type[Tracker], str, str]] = {  # class, what it imports, extra
    "tensorboard": (TensorBoard, "tensorboard", "log"),
    "wandb": (WeightsAndBiases, "wandb", "wandb"),
    "mlflow": (MLflow, "mlflow", "mlflow"),
}


class Tracking:
    """The trackers of one run.

    Args:
        names: of `TRACKERS`.
        folder: the run folder.
        options: the configuration.

    Raises:
        ValueError: an unknown name.
        ImportError: an extra that is missing; said before anything is trained.
    """

    def __init__(self, names: Sequence[str], folder: Path, options: Mapping[str, Any]) -> None:
        check_names(names)
        self.folder = folder
        group = group_of(options)
        self.trackers: dict[str, Tracker] = {}
        self.sent: dict[str, int] = {}
        self.grown = False  # whether this call has sent a point
        if not names:
            return
        ids = self._ids(names)
        for name in names:
            cls, _, _ = TRACKERS[name]
            try:
                self.trackers[name] = cls(folder, ids[name], options, group)
                self.sent[name] = self.trackers[name].last()
            except Exception as problem:
                self._leave_out(name, problem)

    def points(self, curve: Sequence[Mapping[str, Any]]) -> None:
        """Send what a tracker does not have yet."""
        for name, tracker in list(self.trackers.items()):
            for point in curve:
                if point["steps"] > self.sent[name]:
                    values = {"return": point["mean"], **point["metrics"]}
                    try:
                        tracker.point(point["steps"], values)
                    except Exception as problem:
                        self._leave_out(name, problem)
                        break
                    self.sent[name], self.grown = point["steps"], True

    def finish(self, steps: int, film: Callable[[], Film]) -> None:
        """Send an episode, if there are new points, and end; no picture is no failure."""
        with tempfile.TemporaryDirectory() as folder:
            gif = None
            if self.trackers and self.grown:
                try:
                    gif = film().save(Path(folder) / "episode.gif")
                except NotImplementedError:
                    pass  # the environment draws nothing
                except Exception as problem:
                    text = f"no episode is sent ({type(problem).__name__}: {problem})"
                    warnings.warn(text, TrackerFailed, stacklevel=2)
            for name, tracker in list(self.trackers.items()):
                try:
                    if gif is not None:
                        tracker.film(steps, gif)
                    tracker.close()
                except Exception as problem:
                    self._leave_out(name, problem)
        self.trackers.clear()

    def close(self) -> None:
        """End without an episode: the training was interrupted."""
        for name, tracker in list(self.trackers.items()):
            try:
                tracker.close()
            except Exception as problem:
                self._leave_out(name, problem)

    def _ids(self, names: Sequence[str]) -> dict[str, str]:
        file = self.folder / FILE
        ids: dict[str, str] = read_json(file) if file.exists() else {}
        missing = [name for name in names if name not in ids]
        if missing:
            ids = {**ids, **{name: secrets.token_hex(8) for name in missing}}
            write_atomic(file, to_json(ids))
        return ids

    def _leave_out(self, name: str, problem: Exception) -> None:
        self.trackers.pop(name, None)
        said = f"{type(problem).__name__}: {problem}"
        text = f"{name} failed and is left out; the training goes on ({said[:300]})"
        warnings.warn(text, TrackerFailed, stacklevel=3)


def check_names(names: Sequence[str]) -> None:
    """Refuse what is no tracker, or lacks its extra, before anything is trained.

    Raises:
        ValueError: an unknown name.
        ImportError: an extra that is missing.
    """
    import importlib.util

    for name in names:
        if name not in TRACKERS:
            raise ValueError(f"track: got {name!r}, allowed {', '.join(TRACKERS)}")
        _, module, extra = TRACKERS[name]
        if importlib.util.find_spec(module) is None:
            raise ImportError(
                f"track: {name} is not installed: pip install 'palestra[{extra}]'", name=module
            )


def group_of(options: Mapping[str, Any]) -> str:
    """A name that all seeds of a configuration have in common."""
    known = {key: value for key, value in options.items() if key != "seed"}
    digest = hashlib.blake2b(to_json(known), digest_size=4).hexdigest()
    learner = str(options["algorithm"]).rpartition(":")[2]
    return f"{options['environment']}-{learner}-{digest}".replace("/", "-")


def flat(options: Mapping[str, Any], start: str = "") -> dict[str, Any]:
    """Dotted key -> value."""
    found: dict[str, Any] = {}
    for key, value in options.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{start}{key}.")
        else:
            found[f"{start}{key}"] = value
    return found
