"""Recorded steps: they are what happened, whoever plays, and they play again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from palestra import recorder, store
from palestra.batch import Episodes
from palestra.blocks import CorruptBlock, encode_block
from palestra.executors import Processes
from palestra.rollout import evaluate, merge
from palestra.sb3_networks import network_probability
from palestra.spaces import leaves, take
from palestra.store import CorruptFile, RunFolder, RunMismatch
from palestra.trajectories import Trajectories

from .playing import SEED, hashed_actions, play_raw
from .toys import (
    SINGLE,
    TEAMS,
    Convoy,
    Corridor,
    Counter,
    Drift,
    Echo,
    GeometricLength,
    Swarm,
    TakeTurns,
    Toy,
    TwoLocks,
    build,
)

TOYS = f"{Path(__file__).with_name('toys.py')}:"
RECORDED = {"record": "trajectories", "episodes": 13, "block": 5, "seed": SEED, "width": 4}


@pytest.fixture(scope="module", autouse=True)
def one_machine():
    """Asking the machine what it is takes longer than most evaluations here."""
    known = store.machine()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "machine", lambda: known)
        yield


def record(policy, target, run, **arguments):
    evaluation = evaluate(policy, target, run=run, **(RECORDED | arguments))
    return evaluation, Trajectories(run)


def contents(run: Path) -> dict[str, bytes]:
    return {str(p.relative_to(run)): p.read_bytes() for p in sorted(run.glob("*/*.parquet"))}


def same(one, other) -> bool:
    """Whether two trees have the same bits, dtypes and shapes."""
    pairs = zip(leaves(one), leaves(other), strict=True)
    return all(
        (p, a.dtype, a.shape, a.tobytes()) == (q, b.dtype, b.shape, b.tobytes())
        for (p, a), (q, b) in pairs
    )


class Hashed:
    """Plays the actions of `playing.hashed_actions`: functions of episode and step alone."""

    def __init__(self, env):
        self.env = env

    def begin(self, rows, streams):
        self.streams = streams

    def predict(
        self, observation, state=None, episode_start=None, deterministic=True, action_masks=None
    ):
        episode, step = self.streams.episode, self.streams.step + 1
        return hashed_actions(self.env, episode, step, action_masks), state


# --- what is recorded is what happened ------------------------------------------------------------


def test_the_last_observation_of_a_counter_is_its_length(tmp_path):
    """envpool#194: the final observation is lost, or that of the next episode."""
    evaluation, trajectories = record("random", GeometricLength, tmp_path / "run")
    lengths = evaluation.column("length").tolist()
    assert len(set(lengths)) > 3
    assert [len(episode) for episode in trajectories] == lengths
    for episode, length in zip(trajectories, lengths, strict=True):
        assert episode.observations[:, 0].tolist() == list(range(length + 1))
        assert episode.observations.dtype == np.float32
        assert episode.rewards.tolist() == [1.0] * length
        assert episode.terminated.tolist() == [False] * (length - 1) + [True]
        assert not episode.truncated.any()
        assert episode.durations.tolist() == [1.0] * length
        assert episode.action_masks is None


def test_the_table_of_a_counter_is_this(tmp_path):
    _, trajectories = record(lambda x: np.ones(len(x), np.int64), Counter, tmp_path / "run")
    rows = RunFolder.open(tmp_path / "run").read("steps").slice(8, 4).to_pylist()
    taken = {"action": 1, "probability": None, "reward": 1.0, "truncated": False, "duration": 1.0}
    assert rows == [
        {"episode": 2, "step": step, "observation": [float(step)], "terminated": step == 2} | taken
        for step in range(3)
    ] + [
        {"episode": 2, "step": 3, "observation": [3.0], "terminated": None}
        | dict.fromkeys(taken)
    ]  # fmt: skip
    assert [table.num_rows for table in trajectories.tables()] == [20, 20, 12]


@pytest.mark.parametrize("name", [*SINGLE, *TEAMS])
def test_episodes_are_those_of_the_bare_environment_bit_for_bit(name, tmp_path):
    make = lambda rows: build(name, rows)  # noqa: E731
    evaluation, trajectories = record(Hashed(build(name, 4)), make, tmp_path / "run")
    expected = play_raw(make(3), 13)
    teams = name in TEAMS
    for number, episode in enumerate(trajectories):
        bare = expected[number]
        assert episode.episode == number
        assert len(episode) == len(bare.rewards)
        for step, seen in enumerate(bare.observations):
            assert same(take(episode.observations, (step, ...)), seen)
        assert same(episode.rewards, np.array(bare.rewards))
        assert same(episode.durations, np.array(bare.durations))
        assert same(episode.terminated[-1], np.asarray(bare.terminated))
        assert episode.truncated.tolist() == [False] * (len(episode) - 1) + [bare.truncated]
        assert np.isnan(episode.probabilities).all()
        assert episode.probabilities.shape == episode.rewards.shape
        returns = sum(episode.rewards)  # in the order of the steps, as the runner adds
        if teams:
            agents = trajectories.agents
            columns = [evaluation.column(f"return/{agent}")[number] for agent in agents]
            assert returns.tolist() == columns
        else:
            assert returns == evaluation.column("return")[number]
        assert sum(episode.durations) == evaluation.column("duration")[number]


def test_parts_of_spaces_and_agents_have_columns_of_their_own(tmp_path):
    record("random", Echo, tmp_path / "echo")
    echo = RunFolder.open(tmp_path / "echo").read("steps").schema
    assert echo.names[2:8] == [
        f"{field}/{part}"
        for field in ("observation", "action")
        for part in ("pair/0", "pair/1/depth", "bits")
    ]
    assert str(echo.field("observation/bits").type) == "fixed_size_list<element: int8>[4]"
    record("random", Swarm, tmp_path / "swarm")
    swarm = RunFolder.open(tmp_path / "swarm").read("steps").schema.names
    assert [n for n in swarm if n.endswith("/b")] == [
        f"{field}/b" for field in ("observation", "action", "probability", "reward", "terminated")
    ]
    assert [n for n in swarm if "/" not in n] == ["episode", "step", "truncated", "duration"]


def test_legal_actions_are_recorded_and_random_ones_have_one_over_their_number(tmp_path):
    _, trajectories = record("random", Corridor, tmp_path / "run")
    for episode in trajectories:
        cells, waited = episode.observations[:-1].T
        legal = np.stack([cells > 0, waited == 0, cells < 4], axis=1)
        assert (episode.action_masks == legal).all()
        assert legal[np.arange(len(episode)), episode.actions].all()
        assert episode.probabilities.tolist() == (1 / legal.sum(axis=1)).tolist()


def test_masks_of_agents(tmp_path):
    _, trajectories = record("random", TakeTurns, tmp_path / "run")
    episode = trajectories.episode(3)
    assert episode.action_masks.shape == (len(episode), 3, 3)
    assert (episode.probabilities == 1 / episode.action_masks.sum(axis=2)).all()
    waiting = episode.observations[:-1, :, 2] == 0
    assert (episode.actions[waiting] == 0).all()


def test_an_episode_that_the_runner_cuts_is_truncated(tmp_path):
    endless = lambda rows: Counter(rows, length=None)  # noqa: E731
    _, trajectories = record("random", endless, tmp_path / "run", max_steps=5)
    for episode in trajectories:
        assert episode.truncated.tolist() == [False] * 4 + [True]
        assert episode.observations[-1] == 5.0
    assert trajectories.replay(2, endless).same


def test_a_policy_that_reuses_its_array_is_recorded_as_it_acted(tmp_path):
    class Reuses:
        out = np.zeros(4, np.int64)

        def predict(self, observation, state=None, episode_start=None, deterministic=True):
            self.out[:] = observation[:, 0] % 2
            return self.out, state

    _, trajectories = record(Reuses(), Counter, tmp_path / "run")
    assert [episode.actions.tolist() for episode in trajectories] == [[0, 1, 0]] * 13


class Unusual(Toy):
    """Integer types other than int64, and a Box without numbers."""

    def __init__(self, rows, *, horizon=4):
        super().__init__(rows, horizon=horizon)
        self.observation_space = spaces.Dict(
            none=spaces.Box(0.0, 1.0, (0,), np.float32),
            small=spaces.Box(0.0, 1.0, (2, 2), np.float16),
        )
        self.action_space = spaces.MultiDiscrete([3, 2], dtype=np.int32, start=[1, 0])

    def begin(self, rows, streams, options):
        pass

    def advance(self, actions, live, streams, step):
        assert actions.dtype == np.int32
        step.reward[live] = actions[live].sum(axis=1)

    def observe(self, rows, streams, out):
        out["small"][...] = 0.1


def test_every_dtype_comes_back_as_it_was(tmp_path):
    _, trajectories = record("random", Unusual, tmp_path / "run")
    episode = trajectories.episode(12)
    assert episode.actions.dtype == np.int32
    assert trajectories.action_space.dtype == np.int32
    assert episode.observations["none"].shape == (5, 0)
    assert (episode.observations["small"] == np.full((5, 2, 2), 0.1, np.float16)).all()
    assert (episode.actions.sum(axis=1) == episode.rewards).all()
    assert trajectories.replay(12, Unusual).same


def test_two_parts_of_one_name_are_refused(tmp_path):
    class Twice(Counter):
        def __init__(self, rows):
            super().__init__(rows)
            inner = spaces.Dict(b=self.observation_space)
            self.observation_space = spaces.Dict({"a/b": self.observation_space, "a": inner})

        def observe(self, rows, streams, out):
            pass

    with pytest.raises(ValueError, match=r"two parts of .* would have the column 'a/b'"):
        record("random", Twice, tmp_path / "run")


# --- probabilities --------------------------------------------------------------------------------


def network(kind, env, **arguments):
    import sb3_contrib
    import stable_baselines3
    import torch

    from palestra import make

    algorithm = getattr(stable_baselines3, kind, None) or getattr(sb3_contrib, kind)
    policy = "MlpLstmPolicy" if kind == "RecurrentPPO" else "MlpPolicy"
    model = algorithm(policy, make(env, "sb3", 4), seed=0, device="cpu", **arguments)
    with torch.no_grad():
        for parameter in model.policy.parameters():  # initial actors are almost uniform
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.manual_seed(1)))
    return model


def test_a_sampled_discrete_action_has_its_softmax(tmp_path):
    import torch

    model = network("PPO", Counter)
    _, trajectories = record(model, Counter, tmp_path / "run", deterministic=False)
    for episode in trajectories:
        with torch.no_grad():
            latent = model.policy.mlp_extractor.forward_actor(
                torch.as_tensor(episode.observations[:-1])
            )
            logits = model.policy.action_net(latent).numpy().astype(np.float64)
        each = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        expected = each[np.arange(len(episode)), episode.actions]
        np.testing.assert_allclose(episode.probabilities, expected, rtol=1e-5)
    _, trajectories = record(model, Counter, tmp_path / "mode")
    assert [e.probabilities.tolist() for e in trajectories] == [[1.0] * 3] * 13


def test_a_clipped_gaussian_has_a_density_inside_and_a_probability_at_the_bounds(tmp_path):
    """Under the recorded behaviour the ratio of any other clipped Gaussian has the mean 1."""
    import torch
    from scipy.stats import norm

    model = network("PPO", Drift)
    _, trajectories = record(
        model, Drift, tmp_path / "run", deterministic=False, episodes=400, block=200, width=40
    )
    u = np.concatenate([e.actions[:, 0] for e in trajectories]).astype(np.float64)
    given = np.concatenate([e.probabilities for e in trajectories])
    with torch.no_grad():
        seen = np.concatenate([e.observations[:-1] for e in trajectories])
        gaussian = model.policy.get_distribution(torch.as_tensor(seen)).distribution
    mean, sigma = (x.numpy()[:, 0].astype(np.float64) for x in (gaussian.mean, gaussian.stddev))

    def likelihood(mean):
        below, above = norm.cdf(-1, mean, sigma), norm.sf(1, mean, sigma)
        return np.where(u == -1, below, np.where(u == 1, above, norm.pdf(u, mean, sigma)))

    np.testing.assert_allclose(given, likelihood(mean), rtol=1e-4)
    ratio = likelihood(mean + 0.3) / given
    assert abs(ratio.mean() - 1) < 4 * ratio.std() / np.sqrt(len(ratio))
    assert 0.1 < (np.abs(u) == 1).mean() < 0.9  # else this would not test much


def test_binary_components_multiply():
    import torch

    network_of = network("PPO", lambda rows: Echo(rows, kind="binary")).policy
    seen = np.array([[0, 1, 1, 0], [1, 1, 1, 1]], np.int8)
    taken = np.array([[0, 0, 1, 1], [1, 0, 1, 0]], np.int8)
    with torch.no_grad():
        latent = network_of.mlp_extractor.forward_actor(torch.as_tensor(seen).float())
        on = 1 / (1 + np.exp(-network_of.action_net(latent).numpy().astype(np.float64)))
    given = network_probability(network_of, seen, taken, deterministic=False)
    np.testing.assert_allclose(given, np.where(taken == 1, on, 1 - on).prod(axis=1), rtol=1e-5)


def test_the_probabilities_of_several_dials_sum_to_one_over_the_legal_settings(tmp_path):
    model = network("MaskablePPO", TwoLocks)
    _, recorded = record(model, TwoLocks, tmp_path / "run", deterministic=False)
    episode = recorded.episode(0)
    masks = episode.action_masks
    total, of_taken = np.zeros(len(episode)), np.zeros(len(episode))
    for setting in np.ndindex(3, 2):
        taken = np.tile(setting, (len(episode), 1))
        given = network_probability(
            model.policy, episode.observations[:-1], taken, deterministic=False, action_masks=masks
        )
        total += given
        of_taken[(episode.actions == setting).all(axis=1)] = given[
            (episode.actions == setting).all(axis=1)
        ]
    np.testing.assert_allclose(total, 1.0, rtol=1e-5)
    np.testing.assert_allclose(episode.probabilities, of_taken, rtol=1e-5)
    assert (episode.probabilities[1:] < 1).any()


def test_masks_enter_the_probability_of_a_network(tmp_path):
    model = network("MaskablePPO", Corridor)
    _, recorded = record(model, Corridor, tmp_path / "run", deterministic=False)
    forced = 0
    for episode in recorded:
        one = episode.action_masks.sum(axis=1) == 1
        np.testing.assert_allclose(episode.probabilities[one], 1.0, rtol=1e-6)
        assert ((episode.probabilities > 0) & (episode.probabilities <= 1.000001)).all()
        assert (episode.probabilities[~one] < 1).any()
        forced += one.sum()
    assert forced


@pytest.mark.parametrize(
    ("kind", "env", "deterministic", "expected"),
    [
        ("DQN", Counter, True, 1.0),
        ("PPO", Drift, True, None),  # no density
        ("SAC", Drift, False, None),
        ("DQN", Counter, False, None),
        ("RecurrentPPO", Counter, False, None),
        ("RecurrentPPO", Counter, True, 1.0),
    ],
)
def test_what_other_networks_tell(kind, env, deterministic, expected, tmp_path):
    _, recorded = record(
        network(kind, env), env, tmp_path / "run", deterministic=deterministic, fast=False
    )
    given = recorded.episode(0).probabilities
    assert np.isnan(given).all() if expected is None else (given == expected).all()


def test_state_dependent_exploration_is_not_independent_from_step_to_step(tmp_path):
    model = network("PPO", Drift, use_sde=True)
    _, recorded = record(model, Drift, tmp_path / "run", deterministic=False)
    assert np.isnan(recorded.episode(0).probabilities).all()


def test_the_fast_path_takes_a_discrete_action_for_certain(tmp_path):
    evaluation, recorded = record(network("PPO", Counter), Counter, tmp_path / "run")
    assert evaluation.path == "fast"
    assert (recorded.episode(0).probabilities == 1.0).all()


class Coin:
    """Acts 1 with probability 1/4 if asked to sample."""

    def predict(self, observation, state=None, episode_start=None, deterministic=True):
        return np.ones(len(observation), np.int64), state

    def action_prob(self, observation, actions, episode_start):
        assert episode_start.dtype == np.bool_
        return np.where(actions == 1, 0.25, 0.75)


class Frank(Coin):
    def action_prob(self, observation, actions, deterministic):
        return np.full(len(observation), 1.0 if deterministic else 0.25)


def test_ones_own_policy_tells_by_action_prob(tmp_path):
    def given(policy, deterministic):
        run = tmp_path / f"{type(policy).__name__}{deterministic}"
        _, recorded = record(policy, Counter, run, deterministic=deterministic)
        return recorded.episode(1).probabilities

    assert given(Coin(), False).tolist() == [0.25] * 3
    assert np.isnan(given(Coin(), True)).all()  # it speaks of samples only
    assert given(Frank(), False).tolist() == [0.25] * 3
    assert given(Frank(), True).tolist() == [1.0] * 3


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda n: np.ones((n + 1,)), r"gave shape \(5,\), allowed \(4,\)"),
        (lambda n: -np.ones(n), "no densities"),
    ],
)
def test_what_is_no_probability_is_refused(answer, message, tmp_path):
    class Wrong(Coin):
        def action_prob(self, observation, actions, deterministic):
            return answer(len(observation))

    with pytest.raises(ValueError, match=message):
        record(Wrong(), Counter, tmp_path / "run")


def test_each_agent_tells_of_its_own_actions(tmp_path):
    still = lambda x: np.zeros((len(x), 1), np.float32)  # noqa: E731
    _, recorded = record({"leader": still, "follower": "random"}, Convoy, tmp_path / "convoy")
    probabilities = recorded.episode(0).probabilities
    assert np.isnan(probabilities[:, 0]).all()
    assert (probabilities[:, 1] == 1 / 3).all()
    team = dict.fromkeys("abc", "random")
    _, recorded = record(team, Swarm, tmp_path / "swarm")
    assert (recorded.episode(0).probabilities == 0.5).all()  # a Box of width 2


def test_a_network_that_agents_share_tells_of_each(tmp_path):
    model = network("MaskablePPO", TakeTurns)
    _, recorded = record(model, TakeTurns, tmp_path / "run", deterministic=False)
    episode = recorded.episode(0)
    one = episode.action_masks.sum(axis=2) == 1
    np.testing.assert_allclose(episode.probabilities[one], 1.0, rtol=1e-6)
    assert (episode.probabilities[~one] < 1).any()


def test_recording_changes_no_episode(tmp_path):
    model = network("PPO", Drift)
    for deterministic in (True, False):
        plain = {k: v for k, v in RECORDED.items() if k != "record"}
        bare = evaluate(model, Drift, deterministic=deterministic, **plain)
        run = tmp_path / f"run-{deterministic}"
        recorded, _ = record(model, Drift, run, deterministic=deterministic)
        assert encode_block(recorded.table) == encode_block(bare.table)


# --- blocks: executors, kills, shards, sizes ------------------------------------------------------


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    record("random", TOYS + "Drift", run)
    return run


@pytest.fixture
def run(undisturbed, tmp_path):
    """A finished run that may be damaged."""
    shutil.copytree(undisturbed, tmp_path / "run")
    return tmp_path / "run"


def again(run):
    return record("random", TOYS + "Drift", run)


def test_two_processes_write_the_bytes_of_one(tmp_path, undisturbed):
    record("random", TOYS + "Drift", tmp_path / "run", executor=Processes(workers=2))
    assert contents(tmp_path / "run") == contents(undisturbed)
    assert len(contents(undisturbed)) == 6
    assert RunFolder.open(tmp_path / "run").verify() == ()


def test_shards_merge_into_the_run(tmp_path, undisturbed):
    for index in range(2):
        evaluate("random", TOYS + "Drift", run=tmp_path / "run", shard=(index, 2), **RECORDED)
    (lost,) = (tmp_path / "run" / "steps").glob("00000001.parquet")
    kept = lost.read_bytes()
    lost.unlink()
    with pytest.raises(ValueError, match=r"1 of 3 blocks are missing .*: 1\."):
        merge(tmp_path / "run")
    lost.write_bytes(kept)
    merge(tmp_path / "run")
    assert contents(tmp_path / "run") == contents(undisturbed)


@pytest.mark.parametrize("writes", range(6))
def test_killed_after_any_file_it_goes_on_to_the_same_bytes(
    writes, tmp_path, monkeypatch, undisturbed
):
    done = []
    real = RunFolder.write_block

    def killed(self, kind, index, table):
        if len(done) == writes:
            raise KeyboardInterrupt
        done.append((kind, index))
        real(self, kind, index, table)

    monkeypatch.setattr(RunFolder, "write_block", killed)
    with pytest.raises(KeyboardInterrupt):
        again(tmp_path / "run")
    monkeypatch.undo()
    assert all(done[i] == ("steps" if i % 2 == 0 else "episodes", i // 2) for i in range(writes))
    again(tmp_path / "run")
    assert contents(tmp_path / "run") == contents(undisturbed)


def test_steps_that_were_deleted_are_played_again(run, undisturbed):
    (run / "steps" / "00000001.parquet").unlink()
    with pytest.raises(ValueError, match="block 1 has not been played yet, or was deleted"):
        Trajectories(run).episode(5)
    assert Trajectories(run).episode(4).episode == 4
    again(run)
    assert contents(run) == contents(undisturbed)


def test_a_run_that_records_is_another_run(run, tmp_path):
    plain = {k: v for k, v in RECORDED.items() if k != "record"}
    with pytest.raises(RunMismatch, match="record"):
        evaluate("random", TOYS + "Drift", run=run, **plain)
    evaluate("random", TOYS + "Drift", run=tmp_path / "plain", **plain)
    assert "record" not in RunFolder.open(tmp_path / "plain").config  # as before there was one
    with pytest.raises(RunMismatch, match="record"):
        again(tmp_path / "plain")
    with pytest.raises(ValueError, match="holds no trajectories; record them"):
        Trajectories(tmp_path / "plain")


def test_arguments_that_do_not_fit_are_refused(tmp_path):
    with pytest.raises(ValueError, match="record: got 'video', allowed None, 'trajectories'"):
        evaluate("random", Counter, run=tmp_path / "run", record="video")
    with pytest.raises(ValueError, match="record: 'trajectories' needs run"):
        evaluate("random", Counter, record="trajectories")
    assert not (tmp_path / "run").exists()


class Pictures(Counter):
    """1000 steps of 100 kB."""

    def __init__(self, rows, *, horizon=1000):
        super().__init__(rows, horizon=horizon, length=None)
        self.observation_space = spaces.Box(0, 255, (250, 400), np.uint8)

    def observe(self, rows, streams, out):
        out[...] = 7


def test_blocks_are_as_small_as_their_steps_demand(tmp_path, monkeypatch):
    assert recorder.episodes_that_fit(Pictures(64), None) == 1  # 100 MB
    assert recorder.episodes_that_fit(Pictures(64), 99) == 2**26 // (100_072 * 100)
    assert recorder.episodes_that_fit(Counter(64), None) == 2**26 // ((4 + 8 + 64) * 1001)
    monkeypatch.setattr(recorder, "BLOCK_BYTES", 76 * 1001 * 21)
    arguments = {"episodes": 40, "width": 8, "block": None}
    record("random", Counter, tmp_path / "run", **arguments)
    assert RunFolder.open(tmp_path / "run").config["block"] == 16  # whole rounds of 8 rows
    monkeypatch.setattr(recorder, "BLOCK_BYTES", 76 * 1001 * 5)
    record("random", Counter, tmp_path / "small", **arguments)
    assert RunFolder.open(tmp_path / "small").config["block"] == 5
    record("random", Counter, tmp_path / "run", **arguments)  # goes on with its own


def test_a_block_that_does_not_fit_is_refused_before_the_memory_is_gone(tmp_path, monkeypatch):
    monkeypatch.setattr(recorder, "MOST_BYTES", 2**20)
    endless = lambda rows: Counter(rows, length=None)  # noqa: E731
    with pytest.raises(ValueError, match="block: its recorded steps take more than 1 MiB"):
        record("random", endless, tmp_path / "run")


# --- damage ---------------------------------------------------------------------------------------


def test_a_flipped_bit_is_noticed(run):
    block = run / "steps" / "00000001.parquet"
    data = bytearray(block.read_bytes())
    for place in range(4, len(data), 211):
        data[place] ^= 16
        block.write_bytes(data)
        with pytest.raises(CorruptBlock, match="00000001"):
            Trajectories(run).episode(7)
        data[place] ^= 16
    assert Trajectories(run).episode(4).episode == 4
    assert any("00000001" in problem for problem in RunFolder.open(run).verify())


def rewritten(run, change):
    """The block 1 of a run, changed and sealed again, as somebody else may hand it over."""
    import pyarrow as pa

    path = run / "steps" / "00000001.parquet"
    table = RunFolder.open(run).read_block("steps", 1)
    path.write_bytes(encode_block(change(table, pa)))


def without_steps(table, pa):
    """Of episode 6 nothing but its final observation, as if it were the first."""
    episode, step = (table.column(name).to_numpy() for name in ("episode", "step"))
    last = np.append(np.diff(episode) != 0, True)
    kept = (episode != 6) | last
    step = np.where(episode == 6, 0, step).astype(np.uint32)[kept]
    return table.filter(pa.array(kept)).set_column(1, "step", pa.array(step))


DAMAGES = {
    "an episode without steps": without_steps,
    "rows are missing": lambda t, pa: t.slice(1),
    "an episode is missing": lambda t, pa: t.filter(pa.compute.field("episode") != 6),
    "the final observations are missing": lambda t, pa: t.drop_null(),
    "order": lambda t, pa: t.take(list(reversed(range(t.num_rows)))),
    "a column is missing": lambda t, pa: t.drop_columns(["reward"]),
    "a column more": lambda t, pa: t.append_column("x", t.column("step")),
    "another type": lambda t, pa: t.set_column(
        6, "reward", t.column("reward").cast(pa.float32())
    ),
    "a missing reward": lambda t, pa: t.set_column(
        t.schema.get_field_index("reward"), "reward", pa.nulls(t.num_rows, pa.float64())
    ),
    "a missing number": lambda t, pa: t.set_column(
        1, "step", pa.array([None, *t.column("step").to_pylist()[1:]], pa.uint32())
    ),
    "masks": lambda t, pa: t.append_column("action_mask", t.column("terminated")),
    "nothing": lambda t, pa: t.slice(0, 0),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_block_that_holds_something_else_is_refused(run, damage):
    import pyarrow.compute  # noqa: F401

    rewritten(run, DAMAGES[damage])
    with pytest.raises(CorruptFile, match="00000001"):
        Trajectories(run).episode(5)


def test_nulls_inside_a_list_are_refused(run):
    def hole(table, pa):
        column = table.column("observation")
        values = column.combine_chunks().flatten().to_pylist()
        values[3] = None
        lists = pa.FixedSizeListArray.from_arrays(pa.array(values, pa.float32()), 2)
        return table.set_column(2, "observation", lists)

    rewritten(run, hole)
    with pytest.raises(CorruptFile, match="'observation' lacks a value"):
        Trajectories(run).episode(5)


def test_a_block_in_place_of_another_is_noticed(run):
    shutil.copy(run / "steps" / "00000000.parquet", run / "steps" / "00000001.parquet")
    with pytest.raises(CorruptBlock, match="episodes 5 to 9 in order"):
        Trajectories(run).episode(5)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("record", "video"),
        ("record", 3),
        ("agents", "a"),
        ("observation_space", {"type": "Box"}),
        ("action_space", None),
    ],
)
def test_a_damaged_description_is_refused(run, field, value):
    document = json.loads((run / "run.json").read_text())
    document["config"][field] = value
    (run / "run.json").write_text(json.dumps(document))
    with pytest.raises(CorruptFile, match=field):
        Trajectories(run)


def test_a_run_of_another_kind_holds_no_trajectories(tmp_path):
    for config in ({}, {"kind": "mine", "record": "trajectories"}):
        RunFolder.create_or_resume(tmp_path / str(len(config)), config)
        with pytest.raises(ValueError, match="holds no trajectories"):
            Trajectories(tmp_path / str(len(config)))


@pytest.mark.parametrize("number", [-1, 13, True, 1.0, "1"])
def test_there_is_no_such_episode(undisturbed, number):
    with pytest.raises(ValueError, match=f"episode: got {number!r}, allowed 0 to 12"):
        Trajectories(undisturbed).episode(number)


# --- replay ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*SINGLE, *TEAMS])
def test_every_toy_repeats(name, tmp_path):
    make = lambda rows: build(name, rows)  # noqa: E731
    _, trajectories = record("random", make, tmp_path / "run")
    for number in (0, 4, 12):
        played = trajectories.replay(number, make)
        assert played.same
        assert played.steps == len(played.recorded)


class Faster(Drift):
    def __init__(self, rows, *, horizon=20, gain=0.5 + 2**-40):
        super().__init__(rows, horizon=horizon, gain=gain)


class NoisierFromTheThird(Drift):
    def observe(self, rows, streams, out):
        super().observe(rows, streams, out)
        late = (streams.step >= 3) & (self.everyone if rows is None else rows)
        out[late, 0] = np.nextafter(out[late, 0], np.float32(9))


class Sooner(Drift):
    def __init__(self, rows, *, horizon=2):
        super().__init__(rows, horizon=horizon)


class Slower(Drift):
    def advance(self, actions, live, streams, step):
        super().advance(actions, live, streams, step)
        step.duration[live] = 2.0


class Wider(Drift):
    def __init__(self, rows, *, horizon=20):
        super().__init__(rows, horizon=horizon)
        self.action_space = spaces.Box(-2.0, 2.0, (1,), np.float32)


def longest(trajectories) -> int:
    return int(np.argmax([len(episode) for episode in trajectories]))


@pytest.mark.parametrize(
    ("edited", "step", "field"),
    [
        (Faster, 0, "reward"),
        (NoisierFromTheThird, 3, "observation"),
        (Sooner, 1, "truncated"),
        (Slower, 0, "duration"),
        (Wider, 0, "action_space"),
    ],
)
def test_an_edited_environment_is_noticed_where_it_differs(undisturbed, edited, step, field):
    edited.stream_name = lambda self: "Drift"
    trajectories = Trajectories(undisturbed)
    number = longest(trajectories)
    assert trajectories.replay(number, Drift).same
    played = trajectories.replay(number, edited)
    assert (played.difference.step, played.difference.field) == (step, field)
    assert played.difference.recorded != played.difference.replayed
    assert not played.same
    assert played.to_json()["difference"]["field"] == field


def test_an_action_that_became_illegal_is_named(tmp_path):
    class Stricter(Corridor):
        def stream_name(self):
            return "Corridor"

        def action_masks(self, out):
            super().action_masks(out)
            out[:, 1] = False

    _, trajectories = record("random", Corridor, tmp_path / "run")
    waits = [int(np.argmax(e.actions == 1)) if (e.actions == 1).any() else -1 for e in trajectories]
    number = int(np.argmax(waits))
    played = trajectories.replay(number, Stricter)
    assert (played.difference.step, played.difference.field) == (waits[number], "action")
    assert "refused" in played.difference.replayed


def test_what_a_run_folder_names_is_not_run(run, tmp_path):
    """The folder comes from anywhere; the code that it names is for its reader to choose."""
    spoiled = tmp_path / "evil.py"
    spoiled.write_text("raise SystemExit('code ran')\n")
    document = json.loads((run / "run.json").read_text())
    document["config"]["environment"] = f"{spoiled}:Drift"
    (run / "run.json").write_text(json.dumps(document))
    trajectories = Trajectories(run)
    assert len(list(trajectories)) == 13
    with pytest.raises(ValueError, match="not a registered name"):
        trajectories.replay(0)
    assert trajectories.replay(0, Drift).same


def test_a_registered_environment_needs_no_target(tmp_path):
    _, trajectories = record("deft", "NMRRelax", tmp_path / "run")
    assert all(trajectories.replay(number).same for number in range(13))


def test_episodes_of_one_row_are_those_of_many(undisturbed):
    """What `replay` stands on: it plays in one row what was recorded in four."""
    episodes = Episodes(Drift(1))
    episodes.seed(SEED)
    episodes.upcoming[:] = 7
    episodes.begin(episodes.env.everyone)
    assert same(episodes.observe()[0], Trajectories(undisturbed).episode(7).observations[0])


# --- Minari ---------------------------------------------------------------------------------------


@pytest.fixture
def minari(tmp_path, monkeypatch):
    found = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    return found


@pytest.mark.parametrize(
    ("policy", "environment", "settings"),
    [
        ("random", "CartPole-v1", {}),
        ("random", "CartPole-v1", {"sutton_barto_reward": True, "max_episode_steps": 9}),
        ("random", "Pendulum-v1", {"horizon": 11}),
        ("deft", "NMRRelax", {}),
        ("random", "nmr-relax", {"horizon": 3}),
    ],
)
def test_a_dataset_replays_in_gymnasium_to_the_same_rewards(
    policy, environment, settings, minari, tmp_path
):
    evaluation, trajectories = record(policy, environment, tmp_path / "run", settings=settings)
    trajectories.to_minari("tests/recorded-v0")
    dataset = minari.load_dataset("tests/recorded-v0")
    assert dataset.total_episodes == 13
    assert dataset.total_steps == evaluation.column("length").sum()
    env = dataset.recover_environment()
    starts = dataset.storage.get_episode_metadata(range(13))
    for recorded, episode, start in zip(
        trajectories, dataset.iterate_episodes(), starts, strict=True
    ):
        observation, _ = env.reset(seed=start["seed"], options=start.get("options"))
        assert same(observation, episode.observations[0])
        for t, action in enumerate(episode.actions):
            observation, reward, terminated, truncated, _ = env.step(action)
            assert reward == episode.rewards[t] == recorded.rewards[t]
            assert terminated == episode.terminations[t]
            assert truncated == episode.truncations[t]
            assert same(observation, episode.observations[t + 1])
        assert terminated or truncated
        assert sum(episode.rewards) == evaluation.column("return")[recorded.episode]
        assert same(episode.infos["dt"][1:], recorded.durations)
        assert same(episode.infos["action_probability"][1:], recorded.probabilities)
        assert np.isnan(episode.infos["dt"][0])


@pytest.mark.parametrize("name", [n for n in SINGLE if n != "Echo-pixels"])
def test_every_space_survives_the_export(name, minari, tmp_path):
    _, trajectories = record("random", lambda rows: build(name, rows), tmp_path / "run")
    trajectories.to_minari("toys/any-v0", description="toys", author="A", author_email="a@b")
    dataset = minari.load_dataset("toys/any-v0")
    assert dataset.storage.metadata["description"] == "toys"
    assert dataset.observation_space == trajectories.observation_space
    for recorded, episode in zip(trajectories, dataset.iterate_episodes(), strict=True):
        for mine, theirs in (
            (recorded.observations, episode.observations),
            (recorded.actions, episode.actions),
        ):
            assert dict_of(mine).keys() == dict_of(theirs).keys()
            assert all(same(dict_of(mine)[path], a) for path, a in dict_of(theirs).items())
        assert same(recorded.rewards, episode.rewards)


def dict_of(tree):
    return dict(leaves(tree))


class Camera(Counter):
    """Pictures of noise, which JPEG would change; large enough for Minari to see them as such."""

    def __init__(self, rows):
        super().__init__(rows)
        self.observation_space = spaces.Box(0, 255, (32, 32, 3), np.uint8)

    def observe(self, rows, streams, out):
        for row in range(self.rows) if rows is None else np.flatnonzero(rows):
            noise = streams.generator(row, "observation").integers(0, 256, (32, 32, 3))
            out[row] = noise


def test_pictures_are_exported_without_loss(minari, tmp_path):
    _, trajectories = record("random", Camera, tmp_path / "run")
    trajectories.to_minari("toys/camera-v0")
    for mine, theirs in zip(
        trajectories, minari.load_dataset("toys/camera-v0").iterate_episodes(), strict=True
    ):
        assert same(mine.observations, theirs.observations)


def test_what_minari_cannot_hold_is_refused(minari, tmp_path, run):
    _, several = record("random", Swarm, tmp_path / "swarm")
    with pytest.raises(ValueError, match="the run has the agents a, b, c; a Minari dataset has"):
        several.to_minari("toys/swarm-v0")
    with pytest.raises(ValueError, match="Malformed dataset ID"):
        Trajectories(run).to_minari("a/b-v0")  # a namespace has two letters or more
    assert not (tmp_path / "datasets" / "a").exists()
    (run / "steps" / "00000002.parquet").unlink()
    with pytest.raises(ValueError, match="block 2 has not been played yet"):
        Trajectories(run).to_minari("toys/drift-v0")
    assert not list((tmp_path / "datasets").glob("**/*-v0"))
    again(run)
    Trajectories(run).to_minari("toys/drift-v0")
    with pytest.raises(ValueError, match="already exists"):
        Trajectories(run).to_minari("toys/drift-v0")


def test_without_minari_the_message_says_what_to_install(run, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "minari", None)
    with pytest.raises(ImportError, match=r"pip install 'palestra\[offline\]'"):
        Trajectories(run).to_minari("toys/drift-v0")
