"""Trackers, each really written to and read back, without a network."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import struct
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from palestra import store
from palestra.sweep import sweep
from palestra.tracking import TRACKERS, TrackerFailed, group_of
from palestra.train import TrainConfig, learning_progress, train

CONFIG = TrainConfig(
    environment="NMRRelax",
    steps=192,
    rows=8,
    evaluate_every=64,
    evaluation_episodes=8,
    hyperparameters={"n_steps": 8, "batch_size": 32, "policy_kwargs": {"net_arch": [4]}},
)


@pytest.fixture(scope="module", autouse=True)
def one_machine():
    known = store.machine()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "machine", lambda: known)
        yield


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for name in ("WANDB_DIR", "WANDB_PROJECT", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)


# What each tracker holds of a run: metric -> [(step, value)]; configuration; is there a picture.


def read_tensorboard(run: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tracking"), size_guidance={"scalars": 0})
    events.Reload()
    tags = events.Tags()
    curves = {
        tag.removeprefix("heldout/"): [(e.step, e.value) for e in events.Scalars(tag)]
        for tag in tags["scalars"]
    }
    (text,) = (
        events.Tensors(tag)[0].tensor_proto.string_val[0].decode() for tag in tags["tensors"]
    )
    picture = any(e.encoded_image_string.startswith(b"GIF8") for e in events.Images("episode")) if (
        "episode" in tags["images"]) else False  # fmt: skip
    return curves, text, picture


def wandb_records(file: Path):
    """The records of an offline file: LevelDB's log format after a header of 7 bytes."""
    data, place, parts = file.read_bytes(), 7, []
    assert data[:4] == b":W&B"
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:  # the rest of a block that holds no header
            place += 32768 - place % 32768
            continue
        size, kind = struct.unpack_from("<HB", data, place + 4)
        parts.append(data[place + 7 : place + 7 + size])
        place += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield b"".join(parts)
            parts = []


def read_wandb(run: Path):
    from wandb.proto import wandb_internal_pb2

    curves, config, picture, ids, last = {}, "", False, set(), -1
    for file in sorted((run / "wandb").glob("offline-run-*/*.wandb")):
        ids.add(file.stem)
        for record in wandb_records(file):
            message = wandb_internal_pb2.Record()
            message.ParseFromString(record)
            items = {"/".join(i.nested_key) or i.key: i.value_json for i in message.history.item}
            if "heldout/return" in items:
                if int(items["_step"]) <= last:
                    continue  # as wandb does when it is sent
                last = int(items["_step"])
            for name, value in items.items():
                if name.startswith("heldout/"):
                    point = int(json.loads(items["_step"])), float(json.loads(value))
                    curves.setdefault(name.removeprefix("heldout/"), []).append(point)
            picture |= any(file.path.endswith(".gif") for file in message.files.files)
            for update in message.run.config.update:
                config += f"{update.key} = {update.value_json}\n"
            config += f"group {message.run.run_group}\n" if message.run.run_group else ""
    assert len(ids) == 1  # one run, however often it was resumed
    return curves, config, picture


def read_mlflow(run: Path):
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=(run.resolve().parent / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("palestra")
    (found,) = (
        r for r in client.search_runs([experiment.experiment_id]) if r.info.run_name == run.name
    )
    curves = {
        name.removeprefix("heldout/"): [
            (one.step, one.value) for one in client.get_metric_history(found.info.run_id, name)
        ]
        for name in found.data.metrics
    }
    text = "\n".join(f"{k} = {v}" for k, v in {**found.data.params, **found.data.tags}.items())
    artifacts = [file.path for file in client.list_artifacts(found.info.run_id)]
    assert found.info.status == "FINISHED"
    return curves, text, "episode.gif" in artifacts


READERS = {"tensorboard": read_tensorboard, "wandb": read_wandb, "mlflow": read_mlflow}


def expected(run: Path):
    points = learning_progress(max((run / "checkpoints").glob("step-*")))
    found = {"return": [(p["steps"], p["mean"]) for p in points]}
    for name in points[0]["metrics"]:
        found[name] = [(p["steps"], p["metrics"][name]) for p in points]
    return found


def same(found, wanted):
    assert found.keys() == wanted.keys()
    for name, points in wanted.items():
        assert [step for step, _ in found[name]] == [step for step, _ in points]
        values = [value for _, value in points]
        assert [value for _, value in found[name]] == pytest.approx(values, rel=1e-6, abs=1e-9)


def test_every_tracker_is_tested():
    assert READERS.keys() == TRACKERS.keys()


@pytest.mark.parametrize("name", TRACKERS)
def test_a_tracker_gets_returns_metrics_configuration_and_an_episode(tmp_path, name):
    run = tmp_path / "run"
    with warnings.catch_warnings():
        warnings.simplefilter("error", TrackerFailed)
        train(CONFIG, run, track=[name])
    curves, text, picture = READERS[name](run)
    same(curves, expected(run))
    assert {"return", "time_to_equilibrium", "Mz"} <= curves.keys()
    assert "net_arch" in text
    assert picture
    plain = train(CONFIG, tmp_path / "plain")  # and the training is what it would have been
    assert plain.curve == train(CONFIG, run).curve


SCRIPT = """
import sys
from palestra.config import build
from palestra.train import TrainConfig, train
import json, palestra.train as training, time

config = build(TrainConfig, json.loads(sys.argv[1]))
keep = training._keep
def slow(folder, files, curve):
    keep(folder, files, curve)
    print(curve[-1]["steps"], flush=True)
    time.sleep(0.3 if curve[-1]["steps"] < 128 else 60)
training._keep = slow
if __name__ == "__main__":
    train(config, sys.argv[2], track=[sys.argv[3]])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL on Windows")
@pytest.mark.parametrize("name", TRACKERS)
def test_a_killed_training_goes_on_in_the_same_run_of_the_tracker(tmp_path, name):
    run, options = tmp_path / "run", json.dumps(dataclasses.asdict(CONFIG))
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, options, str(run), name],
        stdout=subprocess.PIPE,
        text=True,
        env={k: v for k, v in os.environ.items() if k != "WANDB_SERVICE"},  # one of its own
    )
    while "128" not in process.stdout.readline():  # kept, and not told to the tracker yet
        assert process.poll() is None
    time.sleep(0.2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    train(CONFIG, run, track=[name])
    curves, _, picture = READERS[name](run)
    same(curves, expected(run))  # nothing twice, nothing lost
    assert picture
    again = READERS[name](run)
    train(CONFIG, run, track=[name])  # a finished one sends nothing more
    assert READERS[name](run)[0] == again[0]


def test_a_point_of_tensorboard_is_one_record(tmp_path):
    """So a kill between two metrics is impossible: a record is whole, or is not read."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    train(CONFIG, tmp_path / "run", track=["tensorboard"])
    (file,) = (tmp_path / "run" / "tracking").iterdir()
    records = [
        {value.tag for value in event.summary.value} for event in EventFileLoader(str(file)).Load()
    ]
    points = [tags for tags in records if "heldout/return" in tags]
    names = {f"heldout/{name}" for name in expected(tmp_path / "run")}
    assert points == [names] * len(expected(tmp_path / "run")["return"])


def test_mlflow_gets_the_rest_of_a_point_that_was_cut_short(tmp_path, monkeypatch):
    from mlflow.store.tracking.file_store import FileStore

    log, calls = FileStore._log_run_metric, []

    def interrupted(self, info, metric):
        calls.append(metric.key)
        if metric.step == 128 and metric.key == "heldout/Mz":
            raise KeyboardInterrupt
        log(self, info, metric)

    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(FileStore, "_log_run_metric", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(CONFIG, run, track=["mlflow"])
    train(CONFIG, run, track=["mlflow"])
    same(read_mlflow(run)[0], expected(run))


def test_seeds_of_one_configuration_have_one_group_and_others_another():
    options = dataclasses.asdict(CONFIG)
    one, two = group_of(options), group_of({**options, "seed": 5})
    assert one == two
    assert one.startswith("NMRRelax-ppo-")
    assert group_of({**options, "steps": 5}) != one


def test_a_tracker_that_fails_is_left_out_and_the_training_goes_on(tmp_path, monkeypatch):
    def broken(self, steps, values):
        raise OSError("the network is away")

    monkeypatch.setattr(TRACKERS["tensorboard"][0], "point", broken)
    with pytest.warns(TrackerFailed, match="tensorboard failed and is left out.*network is away"):
        trained = train(CONFIG, tmp_path / "run", track=["tensorboard", "mlflow"])
    assert trained.curve[-1]["steps"] == 192
    same(read_mlflow(tmp_path / "run")[0], expected(tmp_path / "run"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_server_that_is_away_is_left_out(tmp_path, monkeypatch, name):
    """Nothing listens on port 9. wandb waits for 90 s, MLflow for a few."""
    for key, value in {
        "MLFLOW_TRACKING_URI": "http://127.0.0.1:9",
        "WANDB_MODE": "online",
        "WANDB_BASE_URL": "http://127.0.0.1:9",
        "WANDB_API_KEY": "0" * 40,
    }.items():
        monkeypatch.setenv(key, value)
    with pytest.warns(TrackerFailed, match=f"{name} failed and is left out") as said:
        trained = train(CONFIG, tmp_path / "run", track=[name])
    assert len([w for w in said if w.category is TrackerFailed]) == 1
    assert trained.curve == train(CONFIG, tmp_path / "plain").curve


def test_a_tracker_does_not_wait_forever(tmp_path, monkeypatch):
    for key in list(os.environ):
        if key.startswith(("MLFLOW_HTTP", "WANDB_FINISH")):
            monkeypatch.delenv(key)
    train(dataclasses.replace(CONFIG, steps=64), tmp_path / "run", track=["wandb", "mlflow"])
    import wandb
    from mlflow.environment_variables import MLFLOW_HTTP_REQUEST_MAX_RETRIES

    assert MLFLOW_HTTP_REQUEST_MAX_RETRIES.get() == 2
    settings = wandb.Settings()
    settings.update_from_env_vars(os.environ)
    assert (settings.finish_timeout, settings.finish_timeout_raises) == (120, True)


def test_unknown_and_missing_trackers_are_said_before_anything_is_trained(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="track: got 'comet', allowed tensorboard, wandb, mlflow"):
        train(CONFIG, tmp_path / "run", track=["comet"])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'palestra\[wandb\]'"):
        train(CONFIG, tmp_path / "run", track=["wandb"])
    assert not (tmp_path / "run").exists()


def test_every_trial_of_a_sweep_is_a_run_of_the_tracker(tmp_path):
    space = {"hyperparameters": {"gamma": [0.9, 0.99]}}
    config = dataclasses.replace(CONFIG, steps=64)
    sweep(config, space, tmp_path / "sweep", sampler="grid", track=["tensorboard"])
    for number in range(2):
        trial = tmp_path / "sweep" / "trials" / f"{number:04d}"
        same(read_tensorboard(trial)[0], expected(trial))
