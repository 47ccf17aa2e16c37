"""Evaluation: exactly the episodes that were asked for, no bias, the same bytes again."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from gymnasium import spaces
from sb3_contrib import MaskablePPO, RecurrentPPO
from stable_baselines3 import DQN, PPO, SAC
from threadpoolctl import threadpool_info

from palestra import disk as disk_module
from palestra import play, store
from palestra.batch import Episodes
from palestra.blocks import encode_block
from palestra.play import NotFinite
from palestra.policy import LinearPolicy
from palestra.policy_files import save_policy
from palestra.rollout import compare, evaluate
from palestra.store import RunFolder, RunMismatch
from palestra.streams import Streams, uniform
from palestra.views import make

from .test_store_faults import Tampered, contents, leave, refuse
from .toys import (
    CoinLength,
    Corridor,
    Counter,
    Delivery,
    Drift,
    Duet,
    GeometricLength,
    Swarm,
    TakeTurns,
)

CARTPOLE = f"{Path(__file__).parents[2] / 'benchmarks' / 'cartpole.py'}:CartPole"


@pytest.fixture(scope="module", autouse=True)
def one_machine():
    """Asking the machine what it is takes longer than most evaluations here."""
    known = store.machine()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "machine", lambda: known)
        yield


def zero(observation):
    """Action 0; of a Box, the action 0.0."""
    return np.zeros(len(observation), np.int64)


def still(observation):
    return np.zeros((len(observation), 1), np.float32)


def bytes_of(evaluation) -> bytes:
    return encode_block(evaluation.table)


# --- how many, and which --------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 4, 7, 64])
def test_thirteen_episodes_in_blocks_of_five_are_thirteen_rows(tmp_path, width):
    done = evaluate(
        zero, GeometricLength, episodes=13, block=5, width=width, seed=1, run=tmp_path / "run"
    )
    assert done.episodes == 13
    assert done.column("episode").tolist() == list(range(13))
    folder = RunFolder.open(tmp_path / "run")
    assert [folder.read_block("episodes", i).num_rows for i in folder.blocks("episodes")] == [
        5,
        5,
        3,
    ]
    assert folder.finished
    assert folder.verify() == ()


@pytest.mark.parametrize("width", [1, 7, 64])
@pytest.mark.parametrize("block", [None, 5, 64])
def test_short_episodes_are_not_preferred(width, block):
    """Lengths 1 or 100 by a fair coin (stable-baselines3#402, chainerrl#368)."""
    done = evaluate(zero, CoinLength, episodes=50, seed=8, width=width, block=block)
    streams = Streams("CoinLength", 1)
    streams.set_seeds([8])
    coins = [uniform(streams.dynamics[0], np.uint64(e), np.uint32(0), 0) for e in range(50)]
    lengths = [100 if coin < 0.5 else 1 for coin in coins]
    assert 10 < lengths.count(1) < 40
    assert done.column("return").tolist() == lengths
    assert done.column("length").tolist() == lengths
    assert done.mean().estimate == np.mean(lengths)


def test_geometric_lengths_have_mean_ten_and_the_same_table_at_every_width():
    """Variance 90: the mean of 10 000 episodes lies within 3 sigma = 0.28 of 10."""
    tables = {
        width: evaluate(zero, GeometricLength, episodes=10_000, seed=3, width=width)
        for width in (7, 64, 1000)
    }
    mean = tables[64].mean()
    assert abs(mean.estimate - 10) < 0.28
    assert mean.low < 10 < mean.high
    assert len({bytes_of(done) for done in tables.values()}) == 1
    alone = evaluate(zero, GeometricLength, episodes=1000, seed=3, width=1)
    assert alone.table.equals(tables[64].table.slice(0, 1000))


def biased_mean(seed: int, rows: int = 64) -> float:
    """The wrong way: rows play on, and the first 64 episodes to end are taken, ties by row."""
    episodes = Episodes(GeometricLength(rows))
    episodes.seed(seed)
    episodes.begin(episodes.env.everyone)
    lengths: list[int] = []
    while len(lengths) < rows:
        _, ended = episodes.advance(np.zeros(rows, np.int64))
        if ended:
            lengths += episodes.streams.step[episodes.ended].tolist()
            episodes.begin(episodes.ended)
    return float(np.mean(lengths[:rows]))


def test_the_first_64_episodes_to_end_are_a_biased_sample_and_this_test_would_see_it():
    """Negative control: 4.21 +- 0.03 instead of 10 (400 repetitions)."""
    biased = [biased_mean(seed) for seed in range(400)]
    error = np.std(biased) / 20
    assert error < 0.04
    assert abs(np.mean(biased) - 4.21) < 0.03 + 3 * error
    right = [evaluate(zero, GeometricLength, episodes=64, seed=seed) for seed in range(40)]
    mean = np.mean([done.column("return") for done in right])
    assert abs(mean - 10) < 3 * np.sqrt(90 / (64 * 40))


def test_lengths_are_right_in_every_episode_not_only_the_first():
    """Three-step episodes, five of each row (Gymnasium#1017)."""
    done = evaluate(zero, Counter, episodes=35, width=7, seed=0)
    assert set(done.column("length")) == set(done.column("count")) == {3}
    assert set(done.column("return")) == {3.0}
    assert done.column("terminated").all()
    assert not done.column("truncated").any()


@pytest.mark.parametrize("steps", [1023, 1024, 1025, 2500])
def test_long_episodes_are_played_to_their_end(steps):
    """After 1024 steps without an end the books are looked at; nothing is wrong with these."""
    done = evaluate(zero, lambda rows: Counter(rows, length=steps), episodes=3, width=2, seed=0)
    assert done.column("length").tolist() == [steps] * 3


# --- seeds ----------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_table_and_the_next_seed_other_episodes():
    """stable-baselines3#1765, #1480."""
    first, again, other = (
        evaluate(still, Drift, episodes=40, seed=seed, width=8) for seed in (5, 5, 6)
    )
    assert bytes_of(first) == bytes_of(again)
    assert not set(first.column("return")) & set(other.column("return"))


def test_a_seed_that_nobody_gave_is_stored_and_plays_the_same_episodes_again(tmp_path):
    first = evaluate(still, Drift, episodes=9, width=4, run=tmp_path / "run")
    assert RunFolder.open(tmp_path / "run").config["seed"] == first.seed
    again = evaluate(still, Drift, episodes=9, width=4, seed=first.seed)
    assert bytes_of(first) == bytes_of(again)
    resumed = evaluate(still, Drift, episodes=9, width=4, run=tmp_path / "run")
    assert resumed.seed == first.seed
    assert bytes_of(resumed) == bytes_of(first)
    fresh = evaluate(still, Drift, episodes=9, width=4)
    assert fresh.seed != first.seed


class Recorder:
    """u = -gain x, and the first observation of every episode."""

    def __init__(self, gain):
        self.gain = gain
        self.first = {}

    def begin(self, rows, streams):
        self.streams = streams

    def predict(self, observation, state=None, episode_start=None, deterministic=True):
        for row in np.flatnonzero(episode_start):
            self.first[int(self.streams.episode[row])] = observation[row].tolist()
        action = np.clip(-self.gain * observation[:, :1], -1, 1)
        return action.astype(np.float32), state


def test_policies_are_compared_on_the_same_episodes():
    """sb3-contrib#253: equal initial states, paired variance below the unpaired."""
    policies = {"soft": Recorder(0.2), "hard": Recorder(0.4)}
    done = compare(policies, Drift, episodes=200, seed=4, width=16)
    assert done.reference == "soft"
    soft, hard = (policies[name].first for name in ("soft", "hard"))
    assert {e: soft[e] for e in range(200)} == {e: hard[e] for e in range(200)}
    paired = done.difference("hard")
    a, b = (done.evaluations[name].column("return") for name in ("hard", "soft"))
    assert paired.difference.estimate == pytest.approx(a.mean() - b.mean())
    assert np.var(a - b) < np.var(a) + np.var(b)
    assert paired.variance_ratio == pytest.approx((np.var(a) + np.var(b)) / np.var(a - b))
    assert paired.variance_ratio > 1.5
    assert done.difference("hard", "distance").difference.n == 200


def test_compared_policies_keep_apart_names_and_folders(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n"
        "def left(observation): return np.full((len(observation), 1), -1, np.float32)\n"
        "def right(observation): return np.full((len(observation), 1), 1, np.float32)\n"
    )
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        np.savetxt(tmp_path / place / "K.csv", [[0.3, 0.0]], delimiter=",")
    mine, k = f"{tmp_path / 'mine.py'}:", [str(tmp_path / place / "K.csv") for place in "ab"]
    done = compare(
        [mine + "left", mine + "right", *k],
        Drift,
        episodes=10,
        seed=0,
        width=4,
        run=tmp_path / "runs",
    )
    assert list(done.evaluations) == ["left", "right", *k]
    assert len(list((tmp_path / "runs").iterdir())) == 4
    assert bytes_of(done.evaluations["left"]) != bytes_of(done.evaluations["right"])
    with pytest.raises(ValueError, match="stands there twice"):
        compare([k[0], k[0]], Drift, episodes=10)
    with pytest.raises(ValueError, match="reference: got 'middle', allowed left, right"):
        compare({"left": still, "right": still}, Drift, reference="middle")
    with pytest.raises(ValueError, match="got none"):
        compare({}, Drift)


def test_every_compared_policy_has_a_folder_of_its_own_below_the_run(tmp_path):
    names = ["a/b", "a-b", "a b", "..", ".", "policy", "-a-b", "x" * 300, "x" * 301, "a.b_c-d"]
    compare(dict.fromkeys(names, still), Drift, episodes=4, seed=0, width=4, run=tmp_path / "runs")
    made = {folder.name for folder in (tmp_path / "runs").iterdir()}
    assert len(made) == len(names)
    assert {"a-b", "policy", "a.b_c-d"} <= made  # a name that is a folder's name stays
    assert [folder.name for folder in tmp_path.iterdir()] == ["runs"]


# --- what may go wrong in an episode --------------------------------------------------------------


def maskable(seed=0, **arguments):
    env = make(Corridor, "sb3", 8)
    return MaskablePPO("MlpPolicy", env, seed=seed, n_steps=16, batch_size=32, **arguments)


def test_a_policy_that_takes_masks_takes_no_illegal_action():
    """sb3-contrib#212, #166: 1e5 steps of random legal actions, 2e4 of a network that samples."""
    done = evaluate("random", Corridor, episodes=14_000, seed=2, width=256)  # illegal ones raise
    assert done.column("length").sum() > 100_000
    network = evaluate(maskable(), Corridor, episodes=2500, seed=2, deterministic=False, width=128)
    assert network.column("length").sum() > 15_000
    assert set(network.column("cell")) >= {4}


def test_a_policy_that_ignores_masks_is_told_so():
    env = make(Corridor, "sb3", 8)
    blind = PPO("MlpPolicy", env, seed=0, n_steps=16, batch_size=32)
    for policy in (zero, blind):
        for block in (None, 64):
            with pytest.raises(ValueError, match=r"mask forbids.*does not look at action masks"):
                evaluate(policy, Corridor, episodes=64, seed=1, width=32, block=block)


class Spoilt(Drift):
    """Drift that gives `value` for `field` in step 13 of episode 7; "nan", for JSON has none."""

    def __init__(self, rows, *, field="observation", value="nan"):
        super().__init__(rows, horizon=30, gain=0.0)
        self.field, self.value = field, float(value)

    def begin(self, rows, streams, options):
        super().begin(rows, streams, options)
        self.spoilt = np.zeros(self.rows, bool)

    def advance(self, actions, live, streams, step):
        self.x[live] = 0.0
        super().advance(actions, live, streams, step)
        step.terminated[:] = False
        self.spoilt = live & (streams.episode == 7) & (streams.step == 13)
        if self.field in ("reward", "duration"):
            getattr(step, self.field)[self.spoilt] = self.value

    def observe(self, rows, streams, out):
        super().observe(rows, streams, out)
        if self.field == "observation":
            out[self.spoilt if rows is None else self.spoilt & rows, 1] = self.value


@pytest.mark.parametrize("field", ["observation", "reward", "duration", "action"])
@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.filterwarnings("error")
def test_a_number_that_is_not_finite_stops_the_run_and_says_where(tmp_path, field, value):
    """stable-baselines#693, ray#7923: environment, episode, step and field."""

    def policy(observation):
        # the action of step 13 is chosen on the observation of step 12, which holds the step
        spoilt = (field == "action") & (observation[:, 1] == 12) & (np.arange(4) == 2)
        return np.where(spoilt, float(value), 0.0)[:, np.newaxis].astype(np.float32)

    with pytest.raises(NotFinite) as stopped:
        evaluate(
            policy,
            Spoilt,
            episodes=20,
            block=5,
            width=4,
            seed=3,
            settings={"field": field, "value": value},
            run=tmp_path / "run",
        )
    place = "episode 2, step 12" if field == "action" else "episode 7, step 13"
    assert str(stopped.value) == f"Spoilt: seed 3, {place}: {field} is {value}"
    if field == "action":  # in the first block: there is nothing to keep
        assert not (tmp_path / "run").exists()
    else:
        assert RunFolder.open(tmp_path / "run").blocks("episodes") == [0]


def test_an_episode_that_never_ends_is_cut_and_flagged(monkeypatch):
    """ray#26241, tianshou#225."""
    endless = {"length": None}
    for settings, limit, length, by_runner in (
        (endless, 25, 25, True),
        ({**endless, "horizon": 25}, None, 25, False),
        ({**endless, "horizon": 25}, 25, 25, False),  # the environment's own end comes first
        ({"length": 3}, 25, 3, False),
        (endless, None, 40, True),
    ):
        monkeypatch.setattr(play, "UNBOUNDED_STEPS", 40)
        done = evaluate(zero, Counter, episodes=10, width=4, max_steps=limit, settings=settings)
        assert set(done.column("length")) == {length}
        assert set(done.column("return")) == {length}
        assert set(done.column("truncated_by_runner")) == {by_runner}
        assert set(done.column("truncated")) == {"horizon" in settings}
    some = evaluate(zero, CoinLength, episodes=40, width=4, block=40, seed=8, max_steps=50)
    cut = some.column("length") == 50
    assert 10 < cut.sum() < 30
    assert (some.column("truncated_by_runner") == cut).all()
    assert (some.column("terminated") == ~cut).all()


class Recall(CoinLength):
    """Pays for an action that equals the number of steps so far."""

    def __init__(self, rows, *, horizon=None):
        super().__init__(rows, horizon=horizon)
        self.action_space = spaces.Discrete(10_000)

    def advance(self, actions, live, streams, step):
        right = actions == self.count
        super().advance(actions, live, streams, step)
        step.reward[live] = right[live]


class CountsItsCalls:
    """Remembers how often it was called since the episode began."""

    def predict(self, observation, state=None, episode_start=None, deterministic=True):
        calls = np.zeros(len(observation), np.int64) if state is None else state
        calls = np.where(episode_start, 0, calls)
        return calls, calls + 1


@pytest.mark.parametrize("width", [1, 7, 64])
def test_the_memory_of_a_policy_ends_with_the_episode(width):
    """IsaacLab#3837: the count is the index of the step, in every episode and row."""
    done = evaluate(CountsItsCalls(), Recall, episodes=100, width=width, block=30, seed=1)
    assert (done.column("return") == done.column("length")).all()


def test_steps_of_different_length_are_summed_and_stored():
    done = evaluate(lambda x: np.asarray(x) % 3, Delivery, episodes=30, width=8, seed=1)
    duration = done.column("duration")
    assert (duration == -done.column("return")).all()
    assert set(done.column("length")) == {3}
    assert ((duration > 6) & (duration < 9)).all()  # 1 + 2 + 3 seconds and three delays below 1
    assert (evaluate(still, Drift, episodes=5).column("duration") == 20).any()


@pytest.mark.parametrize("team", [TakeTurns, Swarm, Duet])
def test_with_agents_each_has_a_return_and_the_table_is_the_same_at_every_width(team):
    one, seven, many = (evaluate("random", team, episodes=30, seed=2, width=w) for w in (1, 7, 64))
    assert bytes_of(one) == bytes_of(seven) == bytes_of(many)
    agents = [one.column(f"return/{agent}") for agent in team.agents]
    assert np.allclose(one.column("return"), np.sum(agents, axis=0))
    assert any((a != agents[0]).any() for a in agents[1:])
    ended = one.column("terminated") | one.column("truncated")
    assert ended.all()
    assert one.column("terminated").any() == (team is not Swarm)  # somebody stays to the end
    by_agent = evaluate(dict.fromkeys(team.agents, "random"), team, episodes=30, seed=2, width=7)
    assert by_agent.column("return").tolist() != one.column("return").tolist()


# --- the same bytes -------------------------------------------------------------------------------


def small(algorithm, env, policy="MlpPolicy", **arguments):
    return algorithm(policy, env, seed=1, policy_kwargs={"net_arch": [16]}, **arguments)


def exploring_dqn(env):
    dqn = small(DQN, env, buffer_size=100)
    dqn.exploration_rate = 0.5
    return dqn


NETWORKS = {  # name -> how it is made, and whether it acts at random
    "PPO": (lambda: (small(PPO, make(Drift, "sb3", 4)), Drift), False),
    "PPO, sampled": (lambda: (small(PPO, make(Drift, "sb3", 4)), Drift), True),
    "PPO with gSDE, sampled": (
        lambda: (small(PPO, make(Drift, "sb3", 4), use_sde=True), Drift),
        True,
    ),
    "PPO, Discrete": (lambda: (small(PPO, make(CARTPOLE, "sb3", 4)), CARTPOLE), False),
    "PPO, Discrete, sampled": (lambda: (small(PPO, make(CARTPOLE, "sb3", 4)), CARTPOLE), True),
    "SAC, sampled": (lambda: (small(SAC, make(Drift, "sb3", 4), buffer_size=100), Drift), True),
    "DQN, exploring": (lambda: (exploring_dqn(make(CARTPOLE, "sb3", 4)), CARTPOLE), True),
    "RecurrentPPO": (
        lambda: (small(RecurrentPPO, make(Drift, "sb3", 4), "MlpLstmPolicy"), Drift),
        False,
    ),
    "RecurrentPPO, sampled": (
        lambda: (small(RecurrentPPO, make(Drift, "sb3", 4), "MlpLstmPolicy"), Drift),
        True,
    ),
    "MaskablePPO, sampled": (lambda: (maskable(), Corridor), True),
}


@pytest.fixture(scope="module")
def acting():
    """name -> policy, target, whether it acts at random; each made once."""
    made = {}

    def get(name):
        if name not in made:
            make_it, sampled = NETWORKS[name]
            made[name] = (*make_it(), sampled)
        return made[name]

    return get


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_plays_the_same_table_whatever_ran_before(acting, name):
    policy, target, sampled = acting(name)
    arguments = {"episodes": 70, "width": 16, "seed": 9, "deterministic": not sampled}
    first = evaluate(policy, target, **arguments)
    threads = torch.get_num_threads()
    for disturbance in range(3):
        torch.manual_seed(disturbance)
        np.random.seed(disturbance)  # noqa: NPY002 - what a user may do
        random.seed(disturbance)
        torch.set_num_threads(1 + disturbance)
        if disturbance == 1:
            evaluate(policy, target, episodes=5, width=16, seed=1, deterministic=False)
        if disturbance == 2 and hasattr(policy.policy, "reset_noise") and policy.use_sde:
            policy.policy.reset_noise(16)
        state = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
        again = evaluate(policy, target, **arguments)
        assert bytes_of(again) == bytes_of(first)
        assert random.getstate() == state[0]
        assert np.array_equal(np.random.get_state()[1], state[1][1])  # noqa: NPY002
        assert torch.equal(torch.get_rng_state(), state[2])
        assert torch.get_num_threads() == 1 + disturbance
    torch.set_num_threads(threads)
    if sampled:
        greedy = evaluate(policy, target, **{**arguments, "deterministic": True})
        assert not greedy.table.equals(first.table)


DIGESTS = """
import hashlib, sys
import torch
from palestra.blocks import encode_block
from palestra.rollout import evaluate
torch.manual_seed(int(sys.argv[1]))
for greedy in (True, False):
    done = evaluate(*sys.argv[2:], episodes=70, width=16, seed=9, deterministic=greedy)
    print(hashlib.sha256(encode_block(done.table)).hexdigest())
"""


class Draws:
    """Draws from every generator that there is, and looks at the number of threads."""

    def __init__(self):
        self.drawn, self.threads = [], set()

    def predict(self, observation, state=None, episode_start=None, deterministic=True):
        self.threads.add(torch.get_num_threads())
        self.threads.update(pool["num_threads"] for pool in threadpool_info())
        numbers = torch.rand(()).item(), np.random.random(), random.random()  # noqa: NPY002
        self.drawn.append(numbers)
        return zero(observation), state


def test_each_block_draws_numbers_of_its_own_and_always_the_same():
    arguments = {"episodes": 30, "width": 5, "block": 10, "deterministic": False}
    first, again, other = Draws(), Draws(), Draws()
    evaluate(first, Counter, seed=1, **arguments)
    evaluate(again, Counter, seed=1, **arguments)
    evaluate(other, Counter, seed=2, **arguments)
    assert len(first.drawn) == 3 * 2 * 3  # blocks, rounds, steps
    assert first.drawn == again.drawn
    for numbers in zip(*first.drawn, strict=True):  # of torch, NumPy, Python
        assert len(set(numbers)) == 18
    assert not set(first.drawn) & set(other.drawn)


def test_evaluation_runs_on_one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    policy = Draws()
    evaluate(policy, Counter, episodes=5, width=5)
    assert policy.threads == {1}
    assert torch.get_num_threads() == 2
    torch.set_num_threads(threads)


def test_a_stored_network_plays_the_same_table_in_another_process(tmp_path, acting):
    policy, target, _ = acting("PPO, Discrete")
    save_policy(policy, tmp_path / "policy")
    there = subprocess.run(
        [sys.executable, "-c", DIGESTS, "7", str(tmp_path / "policy"), target],
        env={**os.environ, "OMP_NUM_THREADS": "2", "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    here = [
        evaluate(policy, target, episodes=70, width=16, seed=9, deterministic=greedy)
        for greedy in (True, False)
    ]
    assert there.stdout.split() == [hashlib.sha256(bytes_of(done)).hexdigest() for done in here]


def test_a_network_that_samples_is_not_seeded_by_the_clock(monkeypatch, acting):
    """The default block follows the speed of the first steps, which must not enter its table."""
    policy = acting("PPO, sampled")[0]
    tables = set()
    for seconds in (1e-9, 1e9):
        monkeypatch.setattr(play, "BLOCK_SECONDS", seconds)
        done = evaluate(policy, Drift, episodes=100, width=8, seed=1, deterministic=False)
        tables.add(bytes_of(done))
    assert len(tables) == 1


@pytest.mark.parametrize(
    ("width", "block"), [(1, 1024), (64, 1024), (200, 3200)], ids=["1 row", "64 rows", "200 rows"]
)
def test_a_block_is_1024_episodes_and_16_a_row_unless_they_are_slow(
    tmp_path, width, block, monkeypatch
):
    monkeypatch.setattr(play, "BLOCK_SECONDS", 1e9)
    evaluate(zero, Counter, episodes=3, width=width, run=tmp_path / "quick")
    assert RunFolder.open(tmp_path / "quick").config["block"] == block
    monkeypatch.setattr(play, "BLOCK_SECONDS", 1e-9)
    evaluate(zero, Counter, episodes=3, width=width, run=tmp_path / "slow")
    assert RunFolder.open(tmp_path / "slow").config["block"] == width


def test_both_paths_to_a_network_play_the_same_episodes(acting):
    for name, exact in (("PPO, Discrete", True), ("PPO", False)):
        policy, target, _ = acting(name)
        quick, slow = (
            evaluate(policy, target, episodes=200, width=32, seed=3, fast=fast)
            for fast in (True, False)
        )
        assert (quick.path, slow.path) == ("fast", "predict")
        assert "agree with predict on 1000 observations" in quick.reason
        if exact:
            assert bytes_of(quick) == bytes_of(slow)
        else:
            assert np.allclose(quick.column("return"), slow.column("return"), atol=1e-4)


# --- stopped, and gone on with --------------------------------------------------------------------


def play_stored(path: Path, policy, **changed):
    arguments = {"episodes": 22, "block": 8, "width": 4, "seed": 6, "deterministic": False}
    return evaluate(policy, Drift, run=path, name="it", **{**arguments, **changed})


def in_child(path: Path, policy, tampered: Tampered) -> int:
    """Evaluate in a forked process; its exit code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of fork beside threads; it only exits
        pid = os.fork()
    if pid == 0:
        code = 98
        with contextlib.suppress(BaseException):
            disk_module.disk = tampered
            play_stored(path, policy)
            code = 0
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, acting):
    """Policy, the files of an unbroken run, and the number of calls to the disk it takes."""
    policy = acting("PPO, sampled")[0]
    path = tmp_path_factory.mktemp("undisturbed") / "run"
    counter = Tampered()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk_module, "disk", counter)
        play_stored(path, policy)
    assert counter.count > 40
    return policy, contents(path), counter.count


def test_killed_at_every_call_to_the_disk_an_evaluation_resumes_to_the_same_bytes(
    tmp_path, undisturbed
):
    policy, files, calls = undisturbed
    assert sorted(files)[:3] == [f"episodes/0000000{i}.parquet" for i in range(3)]
    for at in range(1, calls + 1):
        path = tmp_path / f"{at}" / "run"
        path.parent.mkdir()
        assert in_child(path, policy, Tampered(at, leave)) == 99, at
        play_stored(path, policy)
        assert contents(path) == files, at


def test_an_error_at_every_call_to_the_disk_is_raised_and_the_evaluation_resumes_to_the_same_bytes(
    tmp_path, undisturbed, monkeypatch
):
    policy, files, calls = undisturbed
    silent = 0
    for at in range(1, calls + 1):
        path = tmp_path / f"{at}" / "run"
        path.parent.mkdir()
        monkeypatch.setattr(disk_module, "disk", Tampered(at, refuse))
        with contextlib.suppress(store.StoreFailed):
            play_stored(path, policy)
            silent += 1  # only giving the lock back may fail in silence
        monkeypatch.setattr(disk_module, "disk", Tampered())
        for left in path.rglob(".lock-*"):
            left.unlink()  # as if this process had ended
        play_stored(path, policy)
        assert contents(path) == files, at
    assert silent <= 4


class Stops:
    """Plays, until it is called for the n-th time."""

    def __init__(self, at):
        self.calls, self.at = 0, at

    def predict(self, observation, state=None, episode_start=None, deterministic=True):
        self.calls += 1
        if self.calls == self.at:
            raise KeyboardInterrupt
        return still(observation), state


def test_an_interrupted_evaluation_keeps_its_blocks_and_plays_the_others_only(tmp_path):
    whole = Stops(None)
    play_stored(tmp_path / "whole", whole)
    broken = Stops(whole.calls - 5)
    with pytest.raises(KeyboardInterrupt):
        play_stored(tmp_path / "run", broken)
    assert RunFolder.open(tmp_path / "run").blocks("episodes") == [0, 1]
    rest = Stops(None)
    done = play_stored(tmp_path / "run", rest)
    assert done.episodes == 22
    assert 5 < rest.calls < whole.calls / 2
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")
    finished = Stops(1)
    assert play_stored(tmp_path / "run", finished).table.equals(done.table)
    assert finished.calls == 0


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        ({"seed": 7}, "seed"),
        ({"episodes": 23}, "episodes"),
        ({"block": 4}, "block"),
        ({"width": 5}, "width"),
        ({"deterministic": True}, "deterministic"),
        ({"max_steps": 5}, "max_steps"),
        ({"settings": {"gain": 0.25}}, "settings.gain"),
        ({"name": "other"}, "policy"),
    ],
)
def test_a_run_of_another_configuration_is_refused_and_the_keys_are_named(tmp_path, changed, key):
    play_stored(tmp_path / "run", still)
    with pytest.raises(RunMismatch) as refused:
        evaluate(
            still,
            Drift,
            run=tmp_path / "run",
            **{
                **{"episodes": 22, "block": 8, "width": 4, "seed": 6, "deterministic": False},
                **{"name": "it"},
                **changed,
            },
        )
    assert refused.value.keys == (key,)


def test_a_policy_with_other_numbers_is_another_run(tmp_path):
    gain = np.array([[0.3, 0.0]])
    play_stored(tmp_path / "linear", LinearPolicy(gain))
    with pytest.raises(RunMismatch, match="policy_sha256"):
        play_stored(tmp_path / "linear", LinearPolicy(2 * gain))


def test_a_resumed_run_keeps_its_block(tmp_path):
    play_stored(tmp_path / "run", still)
    assert play_stored(tmp_path / "run", still, block=None).episodes == 22
    assert RunFolder.open(tmp_path / "run").config["block"] == 8


# --- the result -----------------------------------------------------------------------------------


def test_columns_are_read_by_name_and_truth_values_are_rates():
    done = evaluate(zero, CoinLength, episodes=64, seed=8, settings={"horizon": 50})
    cut = done.column("truncated")
    assert done.mean("truncated").rule.startswith("Clopper-Pearson")
    assert done.mean("truncated").estimate == cut.mean()
    assert done.mean("length").rule == "t, corrected for skewness"
    with pytest.raises(KeyError, match="no column 'reward'; there are episode, return, length"):
        done.column("reward")
    assert done.table.schema.field("episode").type == pa.uint64()
    assert done.table.schema.field("truncated_by_runner").type == pa.bool_()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"episodes": 0}, "episodes: got 0, allowed an integer of at least 1"),
        ({"episodes": 2.5}, "episodes: got 2.5"),
        ({"episodes": True}, "episodes: got True"),
        ({"width": 0}, "width: got 0"),
        ({"block": 0}, "block: got 0, allowed an integer of at least 1"),
        ({"max_steps": 0}, "max_steps: got 0, allowed an integer of at least 1"),
        ({"seed": -1}, "seed: got -1"),
    ],
)
def test_arguments_out_of_range_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        evaluate(zero, Counter, **arguments)


def test_a_plain_gymnasium_environment_is_evaluated_too(acting):
    """Time limits of its own arrive as truncations; episodes are the same at every width."""
    policy = acting("PPO, Discrete")[0]
    one, four = (
        evaluate(lambda x: (x[:, 2] > 0).astype(int), "CartPole-v1", episodes=6, seed=1, width=w)
        for w in (1, 4)
    )
    assert bytes_of(one) == bytes_of(four)
    assert one.environment == "CartPole-v1"
    assert evaluate(policy, "CartPole-v1", episodes=3, seed=1, width=2).path == "fast"


# --- certified bounds -----------------------------------------------------------------------------


def test_an_episode_that_breaks_a_certified_bound_is_an_error():
    from palestra.rollout import BoundBroken

    toys = str(Path(__file__).parent / "toys.py")
    given = {"episodes": 8, "seed": 1, "settings": {"length": 3}}
    evaluate("random", f"{toys}:Counter", **given, bounds=[("count", "<=", 3.0)])
    with pytest.raises(BoundBroken, match=r"count is 3, certified >= 4\.0, and 7 more"):
        evaluate("random", f"{toys}:Counter", **given, bounds=[("count", ">=", 4.0)])
    with pytest.raises(ValueError, match="no metric 'cost', allowed"):
        evaluate("random", f"{toys}:Counter", **given, bounds=[("cost", "<=", 1.0)])
