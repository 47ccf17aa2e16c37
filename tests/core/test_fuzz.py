"""Every reader, fed with damaged files: a reader reads, or says that it cannot, and nothing else.

`PALESTRA_FUZZ_SECONDS=60 pytest -m slow tests/core/test_fuzz.py` gives each reader a minute.
"""

from __future__ import annotations

import os
import shutil
import time
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from palestra import evaluate
from palestra.config import build, dump_toml, load_config
from palestra.envs.nmr.events import EventList
from palestra.envs.nmr.exports import trimmed, with_lengths, without_spoilers
from palestra.envs.nmr.pulse_program import from_pulse_program, to_pulse_program
from palestra.envs.nmr.pulseq import from_pulseq, to_pulseq
from palestra.envs.nmr.pulses import cpmg
from palestra.envs.nmr.readers import read_measurement
from palestra.envs.nmr.sample import load_sample
from palestra.policy import LinearPolicy
from palestra.policy_files import save_policy
from palestra.policy_loading import load_policy
from palestra.registry import resolve
from palestra.rollout import checked_table
from palestra.safe_files import MalformedFile, UnsafeFile
from palestra.store import RunFolder
from palestra.train import TrainConfig, learning_progress, train
from palestra.trajectories import Trajectories

SECONDS = float(os.environ.get("PALESTRA_FUZZ_SECONDS", "10"))
ENVIRONMENT = "NMRRelax"
WORDS = (b"NaN", b"-1", b"1e999", b"[" * 2000, b"{" * 2000, b"null", b"\x00" * 9, b"\xff\xfe", b'"')


def damaged(content: bytes, random: np.random.Generator) -> bytes:
    """One to three changes: bits, bytes, words put in, pieces cut out, doubled or moved."""
    data = bytearray(content)
    for _ in range(random.integers(1, 4)):
        place = int(random.integers(0, len(data) + 1))
        length = int(random.integers(1, 1 + min(64, max(1, len(data) - place))))
        kind = random.integers(6)
        if kind == 0 and place < len(data):
            data[place] ^= 1 << int(random.integers(8))
        elif kind == 1 and place < len(data):
            data[place] = int(random.integers(256))
        elif kind == 2:
            data[place:place] = WORDS[random.integers(len(WORDS))]
        elif kind == 3:
            del data[place : place + length]
        elif kind == 4:
            data[place:place] = data[place : place + length]
        else:
            del data[place:]
    return bytes(data)


def policy(path: Path) -> None:
    env = resolve(ENVIRONMENT).make(2)
    loaded = load_policy(path, env)
    loaded.predict(np.zeros((2, 8), np.float32))


class Reader:
    """A sound file (or folder of files), and what reads it."""

    def __init__(self, make, read, spared=()):
        self.make, self.read, self.spared = make, read, spared


def zipped(path: Path) -> None:
    save_policy(LinearPolicy(np.ones((3, 8)), resolve(ENVIRONMENT).make(1).action_space), path)


def sb3(path: Path) -> None:
    from stable_baselines3 import PPO

    import palestra

    env = palestra.make(ENVIRONMENT, "sb3", rows=2)
    PPO("MlpPolicy", env, n_steps=8, batch_size=8, policy_kwargs={"net_arch": [4]}).save(path)


def onnx(path: Path) -> None:
    from palestra.onnx_export import export_onnx

    export_onnx(LinearPolicy(np.ones((3, 8)), resolve(ENVIRONMENT).make(1).action_space),
                ENVIRONMENT, path)  # fmt: skip


def gains(path: Path) -> None:
    from scipy.io import savemat

    gain = np.linspace(-1, 1, 24).reshape(3, 8)
    if path.suffix == ".csv":
        np.savetxt(path, gain, delimiter=",")
    elif path.suffix == ".npy":
        np.save(path, gain)
    else:
        savemat(path, {"K": gain})


def evaluation(path: Path) -> None:
    evaluate("wait", ENVIRONMENT, episodes=16, seed=0, width=8, block=8, run=path)


def recording(path: Path) -> None:
    evaluate("wait", ENVIRONMENT, episodes=8, seed=0, width=8, run=path, record="trajectories")


def training(path: Path) -> None:
    tiny = {"n_steps": 8, "batch_size": 32, "n_epochs": 1, "policy_kwargs": {"net_arch": [4]}}
    config = TrainConfig(
        environment=ENVIRONMENT, steps=64, rows=4, evaluate_every=64, evaluation_episodes=4,
        hyperparameters=tiny,
    )  # fmt: skip
    train(config, path)


def read_evaluation(path: Path) -> None:
    table = checked_table(RunFolder.open(path))
    assert isinstance(table, pa.Table)


def read_recording(path: Path) -> None:
    Trajectories(path).replay(3)


def read_training(path: Path) -> None:
    run = RunFolder.open(path)
    checkpoint = run.latest("step-")  # damaged ones are passed over
    if checkpoint is not None:
        learning_progress(checkpoint)
    policy(path)


OPTIONS = {"environment": ENVIRONMENT, "steps": 64, "hyperparameters": {"gamma": 0.9, "lr": "x"}}
EVENTS = cpmg(te=4e-3, echoes=3, wait=0.1, dead_time=1e-4, dwell=1e-4)
PLAYABLE = trimmed(with_lengths(without_spoilers(EVENTS), 5000.0, 1e-6))
JCAMP = """##JCAMP-DX= 5.01
##DATA TYPE= NMR FID
##SYMBOL= X, R, I, N
##VAR_DIM= 20, 20, 20, 2
##UNITS= SECONDS, ARBITRARY UNITS, ARBITRARY UNITS,
##FIRST= 0, 1, 0, 1
##LAST= 0.019, 1, 0, 2
##FACTOR= 0.001, 0.5, 0.25, 1
##DATA TABLE= (X++(R..R)), XYDATA
0AJJ%jX
9cQJWUU
##DATA TABLE= (X++(I..I)), XYDATA
0 1 2 3 4 5 6 7 8 9 10
10 1 2 3 4 5 6 7 8 9 10
##END=
"""

READERS = {
    "policy.zip": Reader(zipped, policy),
    "model.zip": Reader(sb3, policy),
    "policy.onnx": Reader(onnx, policy),
    "gain.csv": Reader(gains, policy),
    "gain.npy": Reader(gains, policy),
    "gain.mat": Reader(gains, policy),
    "options.toml": Reader(
        lambda p: p.write_text(dump_toml(OPTIONS)), lambda p: build(TrainConfig, load_config(p))
    ),
    "options.yaml": Reader(
        lambda p: p.write_text("environment: NMRRelax\nsteps: 64\nhyperparameters: {gamma: 0.9}\n"),
        lambda p: build(TrainConfig, load_config(p)),
    ),
    "sample.toml": Reader(
        lambda p: p.write_text('name = "s"\n[[species]]\nfraction = 1.0\nT1 = 0.6\nT2 = 0.3\n'),
        load_sample,
    ),
    "events.csv": Reader(
        lambda p: p.write_text(EVENTS.to_csv()), lambda p: EventList.from_csv(text(p))
    ),
    "events.json": Reader(
        lambda p: p.write_text(EVENTS.to_json()), lambda p: EventList.from_json(text(p))
    ),
    "sequence.seq": Reader(
        lambda p: p.write_text(to_pulseq(PLAYABLE)), lambda p: from_pulseq(unsigned(text(p)))
    ),
    "program.txt": Reader(
        lambda p: p.write_text(to_pulse_program(PLAYABLE)), lambda p: from_pulse_program(text(p))
    ),
    "recovery.csv": Reader(
        lambda p: p.write_text("delay (ms),real,imag\n1,-1,0\n2,-0.5,0\n4,0.1,0\n9,0.8,0\n"),
        read_measurement,
    ),
    "fid.dx": Reader(lambda p: p.write_text(JCAMP), read_measurement),
    "evaluation": Reader(evaluation, read_evaluation),
    "recording": Reader(recording, read_recording),
    "training": Reader(training, read_training),
}


DOES_NOT_FIT = {"ValueError", "ConfigError", "UnknownName", "FileNotFoundError"}


def text(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "replace")


def unsigned(sequence: str) -> str:
    """Without its signature, which would refuse everything."""
    return sequence.split("\n[SIGNATURE]")[0]


def feed(name: str, folder: Path, random: np.random.Generator) -> bool:
    """Read a damaged copy; whether it was refused."""
    reader, sound = READERS[name], folder / "sound" / name
    copy = folder / "copy" / name
    if sound.is_dir():
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(sound, copy)
        files = sorted(path for path in copy.rglob("*") if path.is_file())
        victim = files[random.integers(len(files))]
    else:
        shutil.copy(sound, copy)
        victim = copy
    content = damaged(victim.read_bytes(), random)
    victim.write_bytes(content)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reader.read(copy)
    except (MalformedFile, UnsafeFile):
        return True
    except (ValueError, FileNotFoundError) as refusal:  # what was read does not fit
        if type(refusal).__name__ not in DOES_NOT_FIT:  # a raw error of a library
            raise
        return True
    return False


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """Makes each sound file once."""
    root = tmp_path_factory.mktemp("fuzz")
    (root / "sound").mkdir()
    (root / "copy").mkdir()

    def made(name: str) -> Path:
        if not (root / "sound" / name).exists():
            READERS[name].make(root / "sound" / name)
            READERS[name].read(root / "sound" / name)
        return root

    return made


@pytest.mark.parametrize("name", READERS)
def test_damaged_files_are_read_or_refused(sound, name):
    folder, random = sound(name), np.random.default_rng(0)
    refused = [feed(name, folder, random) for _ in range(20)]
    assert any(refused) or name == "training"  # which has other checkpoints to fall back on


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_damaged_files_are_read_or_refused_for_longer(sound, name):
    folder, random = sound(name), np.random.default_rng(int(time.time()))
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        state = random.bit_generator.state
        try:
            feed(name, folder, random)
        except Exception as problem:
            problem.add_note(f"{name}: state of the generator {state}")
            raise
