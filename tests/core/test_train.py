"""Training: one configuration, one run folder, and a run that goes on where it was interrupted."""

from __future__ import annotations

import json
import os
import pickle
import pickletools
import random
import signal
import subprocess
import sys
import time
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from palestra import store
from palestra.checkpoint import restore_learner
from palestra.config import ConfigError, build, load_config
from palestra.policy import LinearPolicy
from palestra.policy_files import policy_files
from palestra.policy_loading import load_policy
from palestra.rollout import evaluate
from palestra.safe_files import MalformedFile
from palestra.store import RunFolder, RunMismatch
from palestra.train import (
    ResumedDifferently,
    TrainConfig,
    algorithm_class,
    learning_progress,
    train,
)
from palestra.views import make
from palestra.wrappers import ClipActions

from .toys import Counter, Drift

HERE = Path(__file__).parent
TOYS = f"{HERE / 'toys.py'}:"
CARTPOLE = f"{HERE.parents[1] / 'benchmarks' / 'cartpole.py'}:CartPole"
SMALL = {"policy_kwargs": {"net_arch": [8]}}
ROLLOUT = {**SMALL, "n_steps": 8, "batch_size": 32}
PIECES = {"steps": 480, "rows": 8, "evaluate_every": 128, "evaluation_episodes": 8}


@pytest.fixture(scope="module", autouse=True)
def one_machine():
    """Asking the machine what it is takes longer than most trainings here."""
    known = store.machine()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "machine", lambda: known)
        yield


def options(**changed) -> TrainConfig:
    return TrainConfig(
        **{"environment": TOYS + "Drift", "hyperparameters": ROLLOUT, **PIECES, **changed}
    )


class Killed(BaseException):
    """The process ends here."""


def train_until(config: TrainConfig, run: Path, checkpoints: int) -> None:
    """Train, and stop after so many checkpoints have been published."""
    publish = RunFolder.publish
    made = []

    def counted(self, name, *arguments, **keywords):
        path = publish(self, name, *arguments, **keywords)
        made.append(name)
        if len([n for n in made if n.startswith("step-")]) == checkpoints:
            raise Killed
        return path

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, "publish", counted)
        with pytest.raises(Killed):
            train(config, run)


def checkpoints(run: Path) -> dict[str, bytes]:
    """Every file of every checkpoint."""
    return {
        file.relative_to(run).as_posix(): file.read_bytes()
        for file in sorted((run / "checkpoints").rglob("*"))
        if file.is_file()
    }


# --- resuming -------------------------------------------------------------------------------------

ON_POLICY = {
    "PPO": {},
    "PPO with VecNormalize": {"normalise_observations": True, "normalise_rewards": True},
    "PPO with gSDE": {"hyperparameters": {**ROLLOUT, "use_sde": True, "sde_sample_freq": 3}},
    "PPO with a falling rate": {"hyperparameters": {**ROLLOUT, "learning_rate": "linear 1e-2"}},
    "A2C": {"algorithm": "a2c", "hyperparameters": {**SMALL, "n_steps": 8}},
    "TRPO": {"algorithm": "trpo"},
    "RecurrentPPO": {
        "algorithm": "recurrent-ppo",
        "hyperparameters": {
            "policy_kwargs": {"net_arch": [8], "lstm_hidden_size": 8},
            "n_steps": 8,
            "batch_size": 32,
        },
    },
    "MaskablePPO": {"algorithm": "maskable-ppo", "environment": TOYS + "Corridor"},
    "agents as rows": {"environment": TOYS + "Swarm"},
    "wrapped": {"wrappers": ["palestra.wrappers:Wrapper"]},
}


@pytest.mark.parametrize("name", ON_POLICY)
def test_a_resumed_training_equals_an_unbroken_one_bit_for_bit(tmp_path, name):
    """stable-baselines3#1643: weights, optimiser, statistics, random states, learning curve."""
    config = options(**ON_POLICY[name])
    unbroken = train(config, tmp_path / "unbroken")
    train_until(config, tmp_path / "resumed", checkpoints=2)
    torch.manual_seed(99)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResumedDifferently)
        resumed = train(config, tmp_path / "resumed")
    assert resumed.curve == unbroken.curve
    assert [point["steps"] for point in resumed.curve][:2] == [0, resumed.curve[1]["steps"]]
    assert checkpoints(tmp_path / "resumed") == checkpoints(tmp_path / "unbroken")


@pytest.mark.parametrize("stop", [1, 3, 4])
def test_it_does_not_matter_when_a_training_was_interrupted_nor_how_often(tmp_path, stop):
    config = options(normalise_observations=True)
    train(config, tmp_path / "unbroken")
    train_until(config, tmp_path / "resumed", stop)
    if stop == 1:
        train_until(config, tmp_path / "resumed", 2)
    train(config, tmp_path / "resumed")
    assert checkpoints(tmp_path / "resumed") == checkpoints(tmp_path / "unbroken")


def test_a_rollout_longer_than_the_pause_between_evaluations_resumes_too(tmp_path):
    config = options(evaluate_every=10)  # a rollout has 64 steps
    unbroken = train(config, tmp_path / "unbroken")
    assert [point["steps"] for point in unbroken.curve] == list(range(0, 513, 64))
    train_until(config, tmp_path / "resumed", 3)
    train(config, tmp_path / "resumed")
    assert checkpoints(tmp_path / "resumed") == checkpoints(tmp_path / "unbroken")


def test_killed_between_its_state_and_its_best_policy_a_training_still_keeps_the_best(tmp_path):
    """`train_until` stops exactly there; at the third state the best may be that very one."""
    config = options(evaluation_episodes=64)
    train(config, tmp_path / "unbroken")
    best = [name for name in checkpoints(tmp_path / "unbroken") if "best" in name]
    for stop in range(1, 6):
        train_until(config, tmp_path / f"{stop}", stop)
        train(config, tmp_path / f"{stop}")
        names = [name for name in checkpoints(tmp_path / f"{stop}") if "best" in name]
        assert names == best, stop


SCRIPT = """
import sys, time
from palestra import store
from palestra.train import train
from tests.core.test_train import options
publish = store.RunFolder.publish
def slow(self, name, *arguments, **keywords):
    path = publish(self, name, *arguments, **keywords)
    print(name, flush=True)
    if name == "step-000000000128":
        time.sleep(60)
    return path
store.RunFolder.publish = slow
train(options(normalise_observations=True), sys.argv[1])
"""


def test_a_training_that_was_killed_resumes_in_another_process_to_the_same_bits(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "killed")],
        cwd=HERE.parents[1],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        for line in process.stdout:
            if line == "step-000000000128\n":
                break
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    resumed = train(options(normalise_observations=True), tmp_path / "killed")
    unbroken = train(options(normalise_observations=True), tmp_path / "unbroken")
    assert resumed.curve == unbroken.curve
    assert checkpoints(tmp_path / "killed") == checkpoints(tmp_path / "unbroken")
    assert not list((tmp_path / "killed").rglob(".*"))


def test_a_finished_training_is_not_trained_again(tmp_path, monkeypatch):
    first = train(options(), tmp_path / "run")
    before = checkpoints(tmp_path / "run")
    monkeypatch.setattr("palestra.train._learner", None)
    again = train(options(), tmp_path / "run")
    assert again.curve == first.curve
    assert checkpoints(tmp_path / "run") == before


class Bare(Drift):
    """Drift that cannot be stored."""

    def __getattribute__(self, name):
        if name in ("snapshot", "restore"):
            raise AttributeError(name)
        return super().__getattribute__(name)

    def begin(self, rows, streams, options):
        super().begin(rows, streams, options)
        self.played = [*getattr(self, "played", []), *streams.episode[rows].tolist()]


BARE = f"{__name__}:Bare"


@pytest.mark.parametrize("wrappers", [[], ["palestra.wrappers:Wrapper"]], ids=["bare", "wrapped"])
def test_without_snapshot_a_resumed_training_goes_on_with_new_episodes_and_says_so(
    tmp_path, wrappers
):
    config = options(environment=BARE, wrappers=wrappers)
    train_until(config, tmp_path / "run", 2)
    learner = RunFolder.open(tmp_path / "run").latest("step-") / "learner.json"
    assert json.loads(learner.read_text())["environment"]["rows"] is False
    with pytest.warns(ResumedDifferently, match="new episodes: the environment has no snapshot"):
        done = train(config, tmp_path / "run")
    assert done.curve[-1]["steps"] >= 480


def test_without_snapshot_the_episodes_that_were_played_are_not_played_again(tmp_path):
    from palestra.checkpoint import learner_files, restore_learner

    def learner():
        cls = algorithm_class("ppo")
        return cls("MlpPolicy", make(Bare, "sb3", 8), seed=0, n_steps=8, batch_size=32)

    first, second = learner(), learner()
    first.learn(256)
    restore_learner(second, learner_files(first))
    second.learn(64, reset_num_timesteps=False)
    before, after = first.env.batch.played, second.env.batch.played
    for row in range(8):  # a row plays every eighth episode, and goes on with its next
        mine = [[e for e in played if e % 8 == row] for played in (before, after)]
        assert mine[1][0] == mine[0][-1] + 8


def test_an_off_policy_training_goes_on_with_an_empty_replay_buffer_and_says_so(tmp_path):
    hyperparameters = {**SMALL, "buffer_size": 500, "learning_starts": 32}
    config = options(algorithm="sac", hyperparameters=hyperparameters, normalise_observations=True)
    train_until(config, tmp_path / "run", 3)
    with pytest.warns(ResumedDifferently, match="empty replay buffer"):
        done = train(config, tmp_path / "run")
    assert [point["steps"] for point in done.curve] == [0, 128, 256, 384, 480]
    assert "empty replay buffer" in train.__doc__


def test_another_configuration_does_not_go_on_in_the_same_folder(tmp_path):
    train(options(steps=64), tmp_path / "run")
    with pytest.raises(RunMismatch, match=r"hyperparameters.gamma \(absent there, 0.9 asked\)"):
        train(options(steps=64, hyperparameters={**ROLLOUT, "gamma": 0.9}), tmp_path / "run")


# --- the run folder -------------------------------------------------------------------------------


def test_the_last_two_states_and_the_best_policy_stay(tmp_path):
    done = train(options(evaluate_every=64, seed=1), tmp_path / "run")
    steps = [f"step-{point['steps']:012d}" for point in done.curve[-2:]]
    best = max(done.curve, key=lambda point: (point["mean"], point["steps"]))
    assert 0 < best["steps"] < done.curve[-2]["steps"]
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert names == sorted([*steps, f"best-{best['steps']:012d}"])
    assert RunFolder.open(tmp_path / "run").verify() == ()


def test_the_stored_configuration_gives_the_same_training_again(tmp_path):
    config = options(
        hyperparameters={**ROLLOUT, "learning_rate": "linear 3e-3", "target_kl": 0.5},
        settings={"gain": 0.75},
        wrappers=["palestra.wrappers:Wrapper"],
        normalise_observations=True,
    )
    train(config, tmp_path / "first")
    again = build(TrainConfig, load_config(tmp_path / "first" / "config.toml"))
    assert again == config
    train(again, tmp_path / "second")
    assert checkpoints(tmp_path / "first") == checkpoints(tmp_path / "second")
    read = (tmp_path / "first" / "config.toml").read_bytes()
    assert (tmp_path / "second" / "config.toml").read_bytes() == read


def test_a_run_folder_is_a_policy_with_frozen_statistics(tmp_path):
    """stable-baselines3#468, IsaacLab#2635: the best model with its own normalisation."""
    config = options(normalise_observations=True, settings={"gain": 0.8}, seed=4)
    done = train(config, tmp_path / "run")
    best = max(done.curve, key=lambda point: (point["mean"], point["steps"]))
    assert best != done.curve[-1]
    arguments = {"episodes": 8, "seed": config.evaluation_seed, "settings": {"gain": 0.8}}
    for policy in (str(tmp_path / "run"), done.policy):
        played = evaluate(policy, Drift, **arguments)
        assert played.mean().estimate == best["mean"]
        assert played.path == "fast"
    loaded = load_policy(str(tmp_path / "run"), Drift(1))
    observations = np.random.default_rng(0).normal(0, 3, (1000, 2)).astype(np.float32)
    first, _ = loaded.predict(observations)
    evaluate(loaded, Drift, fast=False, **arguments)
    assert np.array_equal(loaded.predict(observations)[0], first)  # evaluation changes nothing
    for row in range(0, 1000, 250):  # one at a time in another process: up to rounding
        assert np.allclose(loaded.predict(observations[row : row + 1])[0], first[row], atol=1e-5)
    script = (
        "import sys, numpy as np; from palestra.policy_loading import load_policy;"
        "from types import SimpleNamespace as S; from gymnasium.spaces import Box;"
        "env = S(observation_space=Box(-np.inf, np.inf, (2,)), action_space=Box(-1, 1, (1,)));"
        "x = np.random.default_rng(0).normal(0, 3, (1000, 2)).astype(np.float32);"
        "sys.stdout.write(load_policy(sys.argv[1], env).predict(x)[0].tobytes().hex())"
    )
    there = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "run")],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert np.allclose(np.frombuffer(bytes.fromhex(there.stdout), np.float32), first[:, 0], 1e-6)


def test_nothing_in_a_run_folder_is_a_pickle_and_nothing_is_unpickled(tmp_path, monkeypatch):
    config = options(normalise_observations=True)
    train_until(config, tmp_path / "run", 3)
    files = [file for file in (tmp_path / "run").rglob("*") if file.is_file()]
    assert {file.suffix for file in files} == {".json", ".toml", ".safetensors"}
    for file in files:
        content = file.read_bytes()
        assert not content.startswith((b"PK", *(bytes([0x80, n]) for n in range(2, 6)))), file
        assert not zipfile.is_zipfile(file)
        with pytest.raises(ValueError):  # noqa: PT011 - whatever pickletools says
            list(pickletools.genops(content))
    for module, name in (
        (pickle, "load"),
        (pickle, "loads"),
        (pickle, "Unpickler"),
        (torch, "load"),
    ):
        monkeypatch.setattr(module, name, None)
    train(config, tmp_path / "run")  # resumes
    evaluate(str(tmp_path / "run"), Drift, episodes=4, settings={"gain": 0.5})
    assert RunFolder.open(tmp_path / "run").verify() == ()


def test_global_random_states_are_left_as_they_were(tmp_path):
    random.seed(1), np.random.seed(1), torch.manual_seed(1)  # noqa: NPY002
    threads = torch.get_num_threads()

    def draws():
        return random.random(), np.random.random(), torch.rand(1).item()  # noqa: NPY002

    train(options(steps=64), tmp_path / "quick")
    drawn = draws()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)  # noqa: NPY002
    assert drawn == draws()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)  # noqa: NPY002
    train_until(options(steps=64), tmp_path / "killed", 1)
    assert drawn == draws()
    assert torch.get_num_threads() == threads


def test_evaluation_does_not_change_what_is_learned(tmp_path):
    seldom = train(options(evaluate_every=10_000), tmp_path / "seldom")
    often = train(options(evaluate_every=64, evaluation_episodes=33), tmp_path / "often")
    last = [RunFolder.open(tmp_path / n).latest("step-") for n in ("seldom", "often")]
    weights = {(path / "weights.safetensors").read_bytes() for path in last}
    assert len(weights) == 1
    assert len(often.curve) > len(seldom.curve) == 2


def test_tensorboard_files_are_written_when_asked_for(tmp_path):
    train(options(tensorboard=True, steps=128), tmp_path / "run")
    (events,) = (tmp_path / "run" / "tensorboard").rglob("events.out.tfevents.*")
    assert b"eval/return" in events.read_bytes()


# --- configurations that do not fit ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"algorithm": "ppa"}, r"algorithm: got 'ppa' \(did you mean '\w+'\?\)"),
        ({"algorithm": "maskable"}, r"did you mean 'MaskablePPO'"),
        (
            {"hyperparameters": {**ROLLOUT, "learning_rat": 1e-3}},
            r"PPO has no 'learning_rat' \(did you mean 'learning_rate'\?\)\. It has: .*n_steps",
        ),
        ({"hyperparameters": {"seed": 3}}, r"hyperparameters.seed: set it as `seed`"),
        ({"hyperparameters": {"verbose": 1}}, r"hyperparameters.verbose: the progress bar"),
        ({"hyperparameters": {**ROLLOUT, "n_steps": 0}}, r"n_steps: got 0, allowed 1 or more"),
        ({"hyperparameters": {**ROLLOUT, "gamma": 1.5}}, r"gamma: got 1\.5, allowed 0 to 1"),
        ({"hyperparameters": {**ROLLOUT, "gamma": "abc"}}, "gamma: got 'abc', allowed a number$"),
        ({"hyperparameters": {**ROLLOUT, "gamma": 10**400}}, r"gamma: got 10+\.\.\., allowed a nu"),
        (
            {"hyperparameters": {**ROLLOUT, "batch_size": 32.0}},
            "batch_size: got 32.0, allowed a wh",
        ),
        ({"hyperparameters": {**ROLLOUT, "use_sde": 1}}, "use_sde: got 1, allowed true or false"),
        (
            {"hyperparameters": {**ROLLOUT, "learning_rate": "fast"}},
            "learning_rate: got 'fast', allowed a number or 'linear 1e-3'",
        ),
        (
            {"hyperparameters": {"policy_kwargs": {"net_arch": "wide"}}},
            "policy_kwargs.net_arch: got 'wide', allowed a list of numbers of units",
        ),
        (
            {"hyperparameters": {"policy_kwargs": {"net_arch": {"pi": [-3]}}}},
            r"policy_kwargs.net_arch: got {'pi': \[-3\]}, allowed a list",
        ),
        ({"hyperparameters": {"policy_kwargs": 3}}, "policy_kwargs: got 3, allowed a table"),
        ({"hyperparameters": {"policy_kwargs": {"net": 3}}}, "PPO refuses .*unexpected keyword"),
        ({"wrappers": ["clip"]}, "wrappers: got 'clip'.*Allowed: clip-actions"),
        (
            {"hyperparameters": {"learning_rate": "linear fast"}},
            "allowed a number or 'linear 1e-3'",
        ),
        (
            {"hyperparameters": {"policy_kwargs": {"activation_fn": "tan"}}},
            "activation_fn: got 'tan', allowed .*Tanh",
        ),
        ({"algorithm": "dqn", "hyperparameters": {}}, "DQN refuses this configuration: .*Discrete"),
        (
            {"policy": "MlpPolice"},
            r"policy: got 'MlpPolice' \(did you mean 'MlpPolicy'\?\)\. Allowed for PPO: auto, Mlp",
        ),
        (
            {"environment": TOYS + "Corridor"},
            "PPO does not look at action masks, which .*Corridor has.*maskable-ppo does",
        ),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused_with_its_name(tmp_path, changed, message):
    with pytest.raises(ValueError, match=message):
        train(options(**changed), tmp_path / "run")
    assert not (tmp_path / "run").exists()  # the corrected training finds its place free


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"device": "tpu"}, "device: got 'tpu', allowed cpu, cuda, cuda:N, mps or auto"),
        ({"settings": {"rows": 3}}, r"settings\.rows: got 3, .*set it as `rows`"),
        ({"settings": {"wrappers": 3}}, r"settings\.wrappers: got 3, .*set it as `wrappers`"),
        ({"steps": "many"}, "steps: got 'many', allowed a whole number"),
    ],
)
def test_what_no_training_takes_is_refused_by_the_configuration(changed, message):
    with pytest.raises(ConfigError, match=message):
        options(**changed)


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_a_device_that_is_not_there_is_not_replaced_by_another(tmp_path, monkeypatch, device):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=f"device: got '{device}', .*; allowed cpu, auto"):
        train(options(device=device), tmp_path / "run")


def test_a_training_that_breaks_before_its_first_rollout_leaves_no_folder(tmp_path):
    breaking = options(environment=TOYS + "Breaking", evaluation_episodes=2)
    breaking_later = options(environment=TOYS + "Breaking", settings={"last": 40})
    (tmp_path / "runs").mkdir()
    run = tmp_path / "runs" / "run"
    with pytest.raises(RuntimeError, match="the motor is off"):
        train(breaking, run)
    assert not run.exists()
    with pytest.raises(RuntimeError, match="the motor is off"):
        train(breaking_later, run)
    assert list(checkpoints(run))  # what was learned before it broke stays


def test_a_folder_that_was_there_is_never_taken_back(tmp_path, monkeypatch):
    run = tmp_path / "run"
    config = options()
    train_until(config, run, 1)
    before = checkpoints(run)
    monkeypatch.setattr("palestra.train._train_sb3", _broken)
    with pytest.raises(RuntimeError, match="the motor is off"):
        train(config, run)
    assert before.items() <= checkpoints(run).items()


def _broken(*_):
    raise RuntimeError("the motor is off")


@pytest.mark.parametrize("tensorboard", [False, True])
def test_a_training_leaves_nothing_in_the_folder_for_temporary_files(
    tmp_path, monkeypatch, tensorboard
):
    pytest.importorskip("tensorboard")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.delenv("SB3_LOGDIR", raising=False)
    train(options(steps=64, tensorboard=tensorboard), tmp_path / "run")
    assert not list((tmp_path / "temporary").iterdir())


def test_a_list_stands_for_a_tuple_where_the_algorithm_wants_one(tmp_path):
    config = options(
        algorithm="sac",
        rows=1,
        hyperparameters={**SMALL, "train_freq": [1, "episode"], "learning_starts": 16},
        steps=32,
    )
    assert train(config, tmp_path / "run").curve[-1]["steps"] >= 32


STATE_MISTAKES = {
    "no table": lambda state: [],
    "no counters": lambda state: {**state, "counters": {}},
    "no environment": lambda state: {**state, "environment": None},
    "no optimisers": lambda state: {k: v for k, v in state.items() if k != "optimisers"},
    "another optimiser": lambda state: {**state, "optimisers": {"mine": {}}},
    "types of nothing": lambda state: {**state, "types": {}},
    "types that are none": lambda state: {**state, "types": dict.fromkeys(state["types"], "x")},
    "episodes that are none": lambda state: {**state, "episodes": [1]},
    "no chance": lambda state: {**state, "random": {"numpy": 3, "python": 3}},
}


@pytest.mark.parametrize("spoil", STATE_MISTAKES.values(), ids=STATE_MISTAKES)
def test_a_state_that_is_none_is_malformed(tmp_path, spoil):
    run = tmp_path / "run"
    train_until(options(), run, 1)
    folder = RunFolder.create_or_resume(run, RunFolder.open(run).config)
    state = folder.latest("step-")
    files = {f.name: f.read_bytes() for f in state.iterdir() if f.name != "manifest.json"}
    files["learner.json"] = json.dumps(spoil(json.loads(files["learner.json"]))).encode()
    with folder.lock():
        folder.publish("step-999999999998", files)  # complete, with hashes that agree
    with pytest.raises(MalformedFile, match=r"learner.json: not a state of this learner"):
        train(options(), run)


def test_a_state_sets_nothing_but_what_a_state_holds(tmp_path):
    run = tmp_path / "run"
    train_until(options(), run, 1)
    (state,) = (run / "checkpoints").glob("step-*")
    files = {file.name: file.read_bytes() for file in state.iterdir()}
    document = json.loads(files["learner.json"])
    document["counters"]["verbose"] = 3
    files["learner.json"] = json.dumps(document).encode()
    view = make(TOYS + "Drift", "sb3", 8)
    learner = algorithm_class("ppo")("MlpPolicy", view, device="cpu", **ROLLOUT)
    restore_learner(learner, files)
    assert learner.verbose == 0


PROGRESS_MISTAKES = {
    "no table": ("[]", r"document = \[\]: must be a table with steps, curve"),
    "no steps": ('{"curve": []}', "steps is missing"),
    "no curve": ('{"steps": 3}', "curve is missing"),
    "empty": ('{"steps": 3, "curve": []}', "curve must end at steps = 3"),
    "a word": (
        '{"steps": 3, "curve": [{"steps": 3, "mean": "high", "low": null, "high": null}]}',
        r"curve\[0\]\.mean = 'high': must be a number",
    ),
}


@pytest.mark.parametrize(("text", "message"), PROGRESS_MISTAKES.values(), ids=PROGRESS_MISTAKES)
def test_a_learning_curve_that_is_none_is_malformed(tmp_path, text, message):
    (tmp_path / "progress.json").write_text(text)
    with pytest.raises(MalformedFile, match=f"progress.json: {message}"):
        learning_progress(tmp_path)


@pytest.mark.parametrize("name", ["steps", "rows", "evaluate_every", "evaluation_episodes"])
def test_counts_are_at_least_one(name):
    with pytest.raises(ConfigError, match=f"{name}: got 0, allowed 1 or more"):
        options(**{name: 0})


def test_training_and_evaluation_never_play_the_same_episodes():
    with pytest.raises(ConfigError, match="evaluation_seed: 5 is the seed of training"):
        options(seed=5, evaluation_seed=5)


def test_names_of_activations_and_algorithms_are_read_without_case():
    assert algorithm_class("maskable-ppo") is algorithm_class("MaskablePPO")
    assert algorithm_class("recurrent_ppo").__name__ == "RecurrentPPO"


def test_hindsight_experience_replay_is_configured_by_name(tmp_path):
    her = {**SMALL, "replay_buffer_class": "HerReplayBuffer", "learning_starts": 100}
    config = options(
        environment=TOYS + "ReachGoal", algorithm="sac", hyperparameters=her, steps=200
    )
    assert train(config, tmp_path / "run").curve[-1]["steps"] == 200
    assert "HerReplayBuffer" in (tmp_path / "run" / "config.toml").read_text()


# --- wrappers -------------------------------------------------------------------------------------


def test_clipped_steps_are_counted_by_episode():
    def by_step(values):
        """A policy whose action follows the step, which Drift shows."""
        table = np.array(values, np.float32)
        return lambda x: table[np.minimum(x[:, 1].astype(int), 3)][:, np.newaxis]

    # without gain, and shorter than any way out: every episode has four steps
    settings = {"horizon": 4, "gain": 0.0}
    arguments = {"episodes": 6, "width": 4, "block": 6, "seed": 1}
    inside = evaluate(by_step([1.0, -0.5, -1.0, 0.0]), Drift, settings=settings, **arguments)
    settings = {**settings, "wrappers": ["clip-actions"]}
    done = evaluate(by_step([3.0, -0.5, -1.5, 0.0]), Drift, settings=settings, **arguments)
    assert (inside.column("length") == 4).all()
    assert done.column("clipped_steps").tolist() == [2] * 6
    assert done.column("return").tolist() == inside.column("return").tolist()


def test_a_clipped_environment_plays_what_the_one_inside_plays_with_clipped_actions():
    def loud(observation):
        return -4.0 * observation[:, :1]

    def clipped(observation):
        return np.clip(loud(observation), -1, 1)

    inside = evaluate(clipped, Drift, episodes=20, seed=1)
    outside = evaluate(loud, Drift, episodes=20, seed=1, settings={"wrappers": ["clip-actions"]})
    assert outside.table.drop_columns(["clipped_steps"]).equals(inside.table)
    counts = outside.column("clipped_steps")
    assert 0 < counts.sum() < outside.column("length").sum()
    with pytest.raises(ValueError, match="allowed a float Box of one agent"):
        ClipActions(Counter(2))


def test_a_wrapper_has_a_snapshot_only_if_the_environment_inside_has_one():
    assert hasattr(ClipActions(Drift(2)), "snapshot")
    assert not hasattr(ClipActions(Bare(2)), "snapshot")
    env = ClipActions(Drift(2))
    state = env.snapshot(env.everyone)
    env._clipped[:] = 7
    env.restore(state, env.everyone)
    assert env._clipped.tolist() == [0, 0]


# --- learners of another make ---------------------------------------------------------------------


class Climber:
    """Learns u = -k x by trying a larger k in each call; a protocol, not an algorithm."""

    def __init__(self, policy, env, *, seed=None, device="cpu", step=0.1):
        self.env, self.seed, self.step = env, seed, step
        self.k = 0.0
        self.learned = 0

    def learn(self, total_timesteps):
        self.k += self.step
        self.learned += total_timesteps
        return self

    def _linear(self):
        return LinearPolicy([[self.k, 0.0]], self.env.action_space)

    def predict(self, observation, state=None, episode_start=None, deterministic=True):
        return self._linear().predict(observation, state, episode_start, deterministic)

    def policy_files(self):
        return policy_files(self._linear())


class KeptClimber(Climber):
    def state_files(self):
        return {"climber.json": json.dumps({"k": self.k, "learned": self.learned}).encode()}

    def restore_files(self, files):
        stored = json.loads(files["climber.json"])
        self.k, self.learned = stored["k"], stored["learned"]


def own(cls, **changed):
    place = f"{__name__}:{cls}"
    return options(algorithm=place, hyperparameters={"step": 0.2}, steps=500, **changed)


def test_a_learner_of_another_make_is_trained_in_pieces_and_resumes(tmp_path):
    unbroken = train(own("KeptClimber"), tmp_path / "unbroken")
    assert [point["steps"] for point in unbroken.curve] == [128, 256, 384, 500]
    train_until(own("KeptClimber"), tmp_path / "resumed", 2)
    assert train(own("KeptClimber"), tmp_path / "resumed").curve == unbroken.curve
    assert checkpoints(tmp_path / "resumed") == checkpoints(tmp_path / "unbroken")
    last = RunFolder.open(tmp_path / "resumed").latest("step-")
    assert json.loads((last / "climber.json").read_bytes()) == {"k": 0.8, "learned": 500}
    assert unbroken.policy.gain.shape == (1, 2)


def test_a_learner_that_cannot_be_stored_is_kept_at_the_end_and_begins_again(tmp_path):
    def interrupted(self, total_timesteps):
        raise Killed

    config = own("Climber")
    cls = algorithm_class(config.algorithm)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cls, "learn", interrupted)
        with pytest.raises(Killed):
            train(config, tmp_path / "run")
    done = train(config, tmp_path / "run")
    assert len(done.curve) == 4
    names = [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()]
    assert [name for name in names if name.startswith("step-")] == ["step-000000000500"]
    assert train(config, tmp_path / "run").curve == done.curve


def test_an_unknown_argument_of_such_a_learner_is_named(tmp_path):
    config = options(algorithm=f"{__name__}:Climber", hyperparameters={"stop": 0.2})
    with pytest.raises(ConfigError, match=r"Climber has no 'stop' \(did you mean 'step'\?\)"):
        train(config, tmp_path / "run")


# --- time limits ----------------------------------------------------------------------------------


class Blind(Counter):
    """Pays 1 a step and shows nothing: there is one value to learn."""

    def observe(self, rows, streams, out):
        out[self.everyone if rows is None else rows] = 0.0


def test_a_time_limit_is_not_taken_for_an_end():
    """cleanrl#198: r = 1, gamma = 0.9, cut at 5 steps: the value is 10, not 1 + .9 + ... = 4.1."""
    env = make(Blind, "sb3", 64, length=None, horizon=5)
    ppo = algorithm_class("ppo")(
        "MlpPolicy", env, seed=0, gamma=0.9, n_steps=5, batch_size=320, n_epochs=20,
        learning_rate=lambda remaining: 0.1 * remaining, policy_kwargs={"net_arch": []},
    )  # fmt: skip
    ppo.learn(64 * 5 * 40)
    with torch.no_grad():
        value = ppo.policy.predict_values(torch.zeros(1, 1)).item()
    assert abs(value - 10) < 0.5


def test_time_is_not_part_of_a_checkpoint(tmp_path, monkeypatch):
    train(options(steps=128), tmp_path / "now")
    monkeypatch.setattr(time, "time", lambda: 1e9)
    train(options(steps=128), tmp_path / "then")
    assert checkpoints(tmp_path / "now") == checkpoints(tmp_path / "then")
