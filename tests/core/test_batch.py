"""The life of a step, and promise L1: an episode has the same bits however it is computed."""

import copy
import json
import os
import pickle
import random
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from palestra.batch import BatchEnv, Episodes, Step, not_finite
from palestra.spaces import leaves
from palestra.streams import stream_key, uniform

from .playing import SEED, Record, digests, environments, hashed_actions, one_row, play_raw
from .toys import (
    SINGLE,
    TEAMS,
    CoinLength,
    Corridor,
    Counter,
    Delivery,
    Drift,
    GeometricLength,
    Swarm,
    TakeTurns,
    TwoLocks,
    build,
)

ROOT = Path(__file__).parents[2]
NAMES = list(environments())
EPISODES = 20


def started(env: BatchEnv, seed: int = 5) -> Episodes:
    episodes = Episodes(env)
    episodes.seed(seed)
    episodes.begin(env.everyone)
    return episodes


def state_of(episodes: Episodes) -> bytes:
    """Every bit that decides how the rows go on."""
    streams = episodes.streams
    arrays = [
        *(streams.seed, streams.episode, streams.step, streams.dynamics, streams.observation),
        *(episodes.ended, episodes.left, episodes.upcoming, episodes.stride),
        *episodes.env.snapshot(episodes.env.everyone).values(),
    ]
    return b"".join(array.tobytes() for array in arrays)


# --- L1: environments ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def by_rows() -> dict[int, dict[str, list[str]]]:
    return {rows: digests(rows, EPISODES) for rows in (1, 7, 64)}


@pytest.mark.parametrize("name", NAMES)
def test_an_episode_is_the_same_bits_at_1_7_and_64_rows(name, by_rows):
    assert by_rows[1][name] == by_rows[7][name] == by_rows[64][name]
    assert len(set(by_rows[1][name])) > 1 or name in CONSTANT


CONSTANT = ("Counter", "Duet", "TwoLocks")  # their episodes differ in their actions at most


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory) -> dict[str, list[str]]:
    """Digests of a fresh process that has to compile every kernel anew."""
    cache = tmp_path_factory.mktemp("kernels")
    played = subprocess.run(
        [sys.executable, "-m", "tests.core.playing", "7", str(EPISODES)],
        cwd=ROOT,
        env=os.environ | {"NUMBA_CACHE_DIR": str(cache)},
        stdout=subprocess.PIPE,
        check=True,
    )
    assert list(cache.rglob("*.nbi")), "the process did not compile into the empty cache"
    return json.loads(played.stdout)


@pytest.mark.parametrize("name", NAMES)
def test_an_episode_is_the_same_bits_in_a_fresh_process_with_an_empty_kernel_cache(
    name, by_rows, elsewhere
):
    assert elsewhere[name] == by_rows[7][name]


@pytest.mark.parametrize("name", NAMES)
def test_an_episode_does_not_depend_on_how_the_one_before_it_went(name):
    """Issue 19 of the dossier: episode k is the same whether episode k - 1 was cut short or not."""
    env = environments()[name](1)
    expected = play_raw(env, 3)[2]
    for cut_after in (0, 1):
        episodes = Episodes(env)
        episodes.seed(20)
        for _ in range(2):
            episodes.begin(env.everyone)
            for now in range(cut_after):
                actions = hashed_actions(env, [99], [now], episodes.masks())
                episodes.advance(actions)
        episodes.begin(env.everyone)
        assert episodes.streams.episode.tolist() == [2]
        assert continue_raw(episodes).bits() == expected.bits()


def continue_raw(episodes: Episodes) -> Record:
    """Play the running episode of a single row to its end."""
    env, streams = episodes.env, episodes.streams
    record = Record([one_row(episodes.observe(), 0)])
    while not episodes.ended[0]:
        actions = hashed_actions(env, streams.episode, streams.step + 1, episodes.masks())
        step, _ = episodes.advance(actions)
        record.observations.append(one_row(episodes.observe(), 0))
        record.rewards.append(step.reward[0].copy())
        record.durations.append(float(step.duration[0]))
        record.terminated = step.terminated[0].copy()
        record.truncated = bool(step.truncated[0])
    record.metrics = {name: values[0].item() for name, values in env.metrics().items()}
    return record


@pytest.mark.parametrize("name", NAMES)
def test_rows_do_not_see_each_other(name):
    """Whatever the other rows do, a row goes its way."""
    make = environments()[name]
    seen = []
    for others in (100, 200):
        env = make(3)
        episodes = started(env)
        trace = []
        for now in range(4):
            pretended = np.array([others, 7, others + 1])
            actions = hashed_actions(env, pretended, np.full(3, now), episodes.masks())
            live = ~episodes.ended
            if not live[1]:
                break
            step, _ = episodes.advance(actions, live)
            trace += [leaf[1].tobytes() for _, leaf in leaves(episodes.observe())]
            trace += [step.reward[1].tobytes(), step.terminated[1].tobytes()]
        seen.append(trace)
    assert seen[0] == seen[1]


@pytest.mark.parametrize("name", NAMES)
def test_observing_twice_gives_the_same_bits(name):
    env = environments()[name](3)
    episodes = started(env)
    first, second = episodes.observe(), episodes.observe()
    for (_, one), (_, two) in zip(leaves(first), leaves(second), strict=True):
        assert one.tobytes() == two.tobytes()
        assert not np.shares_memory(one, two)
    into = episodes.observe_blank()
    episodes.observe_into(np.array([True, False, True]), into)
    for (_, one), (_, part) in zip(leaves(first), leaves(into), strict=True):
        assert part[0].tobytes() == one[0].tobytes()
        assert part[2].tobytes() == one[2].tobytes()
        assert not part[1].any()


@pytest.mark.parametrize("name", NAMES)
def test_frozen_rows_keep_every_bit(name):
    env = environments()[name](3)
    episodes = started(env)
    frozen = np.array([True, False, True])
    before = {k: v.copy() for k, v in env.snapshot(frozen).items()}
    actions = hashed_actions(env, np.arange(3), np.ones(3), episodes.masks())
    step, _ = episodes.advance(actions, ~frozen)
    for key, value in env.snapshot(frozen).items():
        assert value.tobytes() == before[key].tobytes()
    assert episodes.streams.step.tolist() == [0, 1, 0]
    assert not step.reward[frozen].any()
    assert not step.terminated[frozen].any()
    assert not step.duration[frozen].any()


# --- the exact mean of the episodes that were asked for ----------------------------------------


@pytest.mark.parametrize("rows", [1, 7, 64])
def test_short_episodes_are_not_preferred(rows):
    """Issue 1: lengths 1 or 100 by a coin; the mean is the exact mean of those episodes."""
    played = play_raw(CoinLength(rows), 200)
    key = stream_key("CoinLength", SEED, "dynamics")
    coins = [uniform(np.uint64(key), np.uint64(i), np.uint32(0), 0) for i in range(200)]
    exact = [100 if coin < 0.5 else 1 for coin in coins]
    assert [len(played[i].rewards) for i in range(200)] == exact
    returns = [sum(record.rewards) for record in played.values()]
    assert np.mean(returns) == np.mean(exact)
    assert 60 < exact.count(1) < 140


def test_geometric_lengths_have_mean_10_and_variance_90():
    """Reference value 9: 10 within 3 sigma of 10 000 episodes, and equal at every width."""
    lengths = {}
    for rows in (64, 500):
        played = play_raw(GeometricLength(rows), 10_000)
        lengths[rows] = np.array([len(played[i].rewards) for i in range(10_000)])
    assert (lengths[64] == lengths[500]).all()
    assert abs(lengths[64].mean() - 10.0) < 0.28
    assert abs(lengths[64].var() - 90.0) < 9.0


# --- the life of a step ------------------------------------------------------------------------


def test_the_core_counts_steps_and_applies_the_horizon():
    episodes = started(Counter(2, horizon=2, length=None))
    step, ended = episodes.advance([0, 0])
    assert (ended, step.truncated.tolist()) == (0, [False, False])
    step, ended = episodes.advance([0, 0])
    assert (ended, step.truncated.tolist()) == (2, [True, True])
    assert step.terminated.tolist() == [False, False]
    assert episodes.ended.all()
    assert episodes.streams.step.tolist() == [2, 2]


def test_the_last_allowed_step_may_be_terminal_and_truncated_at_once():
    episodes = started(Counter(1, horizon=3, length=3))
    for _ in range(3):
        step, ended = episodes.advance([0])
    assert (ended, step.terminated[0], step.truncated[0]) == (1, True, True)


def test_a_row_plays_its_own_list_of_episodes():
    env = Counter(3, length=1)
    episodes = started(env)
    assert episodes.streams.episode.tolist() == [0, 1, 2]
    episodes.begin(np.array([False, True, False]))
    assert episodes.streams.episode.tolist() == [0, 4, 2]
    episodes.begin(env.everyone)
    assert episodes.streams.episode.tolist() == [3, 7, 5]


def test_a_list_of_seeds_gives_each_row_episodes_0_1_2_of_its_own():
    env = Drift(2)
    episodes = Episodes(env)
    episodes.seed([4, 9])
    episodes.begin(env.everyone)
    assert episodes.streams.episode.tolist() == [0, 0]
    assert episodes.streams.seed.tolist() == [4, 9]
    for row, seed in enumerate((4, 9)):
        assert env.x[row] == started(Drift(1), seed).env.x[0]
    episodes.begin(env.everyone)
    assert episodes.streams.episode.tolist() == [1, 1]
    with pytest.raises(ValueError, match="seed: got 3 seeds, allowed 2, one a row"):
        episodes.seed([1, 2, 3])
    with pytest.raises(TypeError, match="expected an integer"):
        episodes.seed([1, "2"])


def test_without_a_seed_one_is_drawn_and_kept():
    one, two = Episodes(Drift(2)), Episodes(Drift(2))
    for episodes in (one, two):
        episodes.seed(None)
    assert one.streams.seed[0] == one.streams.seed[1]
    assert one.streams.seed[0] != two.streams.seed[0]
    kept = one.streams.seed.copy()
    one.begin(one.env.everyone)
    one.seed(None)
    one.begin(one.env.everyone)
    assert (one.streams.seed == kept).all()
    assert one.streams.episode.tolist() == [2, 3]


def test_rows_and_successive_resets_start_differently():
    """Issue 21: not all rows replay one seed, and resets are not identical."""
    env = Drift(64)
    episodes = started(env)
    starts = [*env.x]
    for _ in range(3):
        episodes.begin(env.everyone)
        starts += [*env.x]
    assert len(set(starts)) == 4 * 64


def test_seeds_0_and_1_share_no_episode():
    """Gymnasium's habit of seed + row would make 63 of 64 episodes the same."""
    starts = [started(Drift(64), seed).env.x for seed in (0, 1)]
    assert not set(starts[0]) & set(starts[1])


def test_an_episode_is_picked_by_its_number():
    env = Drift(2)
    episodes = started(env)
    episodes.begin(env.everyone, [{"episode": 40}, {}])
    assert episodes.streams.episode.tolist() == [40, 3]
    episodes.begin(env.everyone)
    assert episodes.streams.episode.tolist() == [42, 5]
    for wrong, error in ((-1, ValueError), (2**64, ValueError), ("3", TypeError), (1.5, TypeError)):
        with pytest.raises(error, match=r"options\['episode'\]: got"):
            episodes.begin(env.everyone, [{"episode": wrong}] * 2)
    with pytest.raises(ValueError, match="options: got 1 mappings, allowed 2"):
        episodes.begin(env.everyone, [{}])


def test_options_hold_for_one_episode():
    env = Counter(2)
    episodes = started(env)
    episodes.begin(env.everyone, [{"start": 5}, {}])
    assert env.count.tolist() == [5, 0]
    episodes.begin(env.everyone)
    assert env.count.tolist() == [0, 0]


def test_an_unknown_option_warns_once_with_the_known_ones():
    class Fresh(Counter):
        pass

    episodes = started(Fresh(2))
    with pytest.warns(UserWarning, match=r"does not know 'begin'; known: \['episode', 'start'\]"):
        episodes.begin(episodes.env.everyone, [{"begin": 5}, {"begin": 6}])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        episodes.begin(episodes.env.everyone, [{"begin": 5}, {"start": 1}])


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "3", None])
def test_rows_must_be_a_count(wrong):
    with pytest.raises(ValueError, match=r"rows: got .*, allowed an integer of at least 1"):
        Counter(wrong)


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "3", float("nan")])
def test_the_horizon_must_be_a_count(wrong):
    with pytest.raises(ValueError, match=r"horizon: got .*, allowed None or an integer"):
        Counter(1, horizon=wrong)


# --- illegal actions ---------------------------------------------------------------------------

ILLEGAL = {
    "shape": (Counter, [0, 0, 0]),
    "float": (Counter, [0.0, 1.0]),
    "outside": (Counter, [0, 2]),
    "nan": (Drift, [[0.0], [np.nan]]),
    "inf": (Drift, [[0.0], [np.inf]]),
    "too large": (Drift, [[0.0], [1.01]]),
    "masked start": (Corridor, None),
    "masked part": (TwoLocks, None),
    "masked agent": (TakeTurns, None),
    "agents": (Swarm, np.zeros((2, 2, 1), np.float32)),
}


@pytest.mark.parametrize("case", ILLEGAL)
def test_an_illegal_action_raises_and_changes_nothing(case):
    make, actions = ILLEGAL[case]
    env = make(2)
    episodes = started(env)
    masks = episodes.masks()
    if case == "masked start":
        episodes.advance([1, 1])
        actions = [0, 1]  # waiting twice
    elif case == "masked part":
        episodes.advance([[0, 0], [0, 0]])
        actions = [[1, 1], [1, 0]]
    elif case == "masked agent":
        env.pile[:] = 2
        actions = np.zeros((2, 3), np.int64)
        actions[1, env.turn[1]] = 2
    before = state_of(episodes)
    with pytest.raises((TypeError, ValueError), match="action: "):
        episodes.advance(actions)
    assert state_of(episodes) == before
    if masks is not None:
        episodes.advance(hashed_actions(env, [1, 2], [1, 1], episodes.masks()))  # goes on


def test_a_masked_action_is_refused_with_its_place_and_what_is_allowed():
    env = Corridor(2, start=-1)
    episodes = started(env)
    env.cell[:] = 0
    with pytest.raises(ValueError, match=r"row 1: got -1, .* forbids; allowed \[0, 1\]"):
        episodes.advance([0, -1])
    env = TwoLocks(2, first=5)
    episodes = started(env)
    episodes.advance([[5, 5], [6, 6]])
    with pytest.raises(ValueError, match=r"row 1, component 0: got 6, .* allowed \[5, 7\]"):
        episodes.advance([[6, 6], [6, 5]])
    env = TakeTurns(1)
    episodes = started(env)
    env.pile[0], env.turn[0] = 2, 1
    with pytest.raises(ValueError, match=r"row 0, agent 1: got 2, .* allowed \[0, 1\]"):
        episodes.advance([[0, 2, 0]])


def test_masks_bind_neither_frozen_rows_nor_agents_who_wait_or_have_left():
    env = TakeTurns(2)
    episodes = started(env)
    env.pile[:], env.turn[:] = 12, [0, 1]
    episodes.advance([[0, 2, 2], [2, 0, 2]])  # "take 3" of the waiting is not legal for them
    assert env.pile.tolist() == [11, 11]
    env.pile[:] = 2
    episodes.advance([[2, 0, 2], [2, 2, 2]], np.array([True, False]))
    assert env.pile.tolist() == [1, 2]
    env = build("Duet", 1)
    episodes = started(env)
    episodes.advance({"short": [1], "long": [1]})
    episodes.advance({"short": [0], "long": [2]})
    assert episodes.left.tolist() == [[True, False]]
    episodes.advance({"short": [0], "long": [1]})  # masked for `short`, which has left
    with pytest.raises(ValueError, match=r"action of long: row 0: got 1, .* allowed \[0, 2\]"):
        episodes.advance({"short": [0], "long": [1]})


# --- agents ------------------------------------------------------------------------------------


def test_an_agents_end_is_reported_once_and_the_episode_ends_with_the_last():
    env = build("Duet", 1)
    episodes = started(env)
    ends, over = [], []
    for now in range(5):
        actions = hashed_actions(env, [0], [now], episodes.masks())
        step, _ = episodes.advance(actions)
        ends.append(step.terminated[0].tolist())
        over.append(bool(episodes.ended[0]))
    assert ends == [[False, False], [True, False], [False, False], [False, False], [False, True]]
    assert over == [False, False, False, False, True]
    episodes.begin(env.everyone)
    assert not episodes.left.any()


def test_acting_names_the_agents_whose_turn_it_is_and_who_are_there():
    env = Swarm(2)
    episodes = started(env)
    assert episodes.acting().all()
    env.x[1, 2] = 0.9
    episodes.advance(np.ones((2, 3, 1), np.float32))
    assert episodes.acting().tolist()[1][2] is False
    env = TakeTurns(2)
    assert (started(env).acting() == env.acting()).all()

    class Forgetful(Swarm):
        def acting(self):
            return np.ones((self.rows, 3), np.bool_)

    episodes = started(Forgetful(1))
    episodes.env.x[0, 2] = 0.9
    episodes.advance(np.ones((1, 3, 1), np.float32))
    assert episodes.acting()[0, 2] == np.False_


# --- durations, buffers, global state ----------------------------------------------------------


def test_durations_are_what_the_environment_says_and_one_second_otherwise():
    env = Delivery(2)
    step, _ = started(env).advance([0, 2])
    assert 1.0 <= step.duration[0] < 2.0
    assert 3.0 <= step.duration[1] < 4.0
    assert (step.reward == -step.duration).all()
    step, _ = started(Counter(2)).advance([0, 0])
    assert step.duration.tolist() == [1.0, 1.0]


def test_a_step_is_filled_before_the_environment_sees_it():
    for step, shape in ((Step(3), (3,)), (Step(3, 2), (3, 2))):
        assert step.reward.shape == step.terminated.shape == shape
        assert step.truncated.shape == step.duration.shape == (3,)
        assert not step.reward.any()
        assert not step.terminated.any()
        assert not step.truncated.any()
        assert (step.duration == 1.0).all()


def test_nothing_that_was_handed_out_changes_later():
    env = Drift(4)
    episodes = started(env)
    held, copies = [], []
    for now in range(100):
        actions = hashed_actions(env, np.arange(4), np.full(4, now))
        step, _ = episodes.advance(actions, ~episodes.ended)
        episodes.begin(episodes.ended.copy())
        new = [episodes.observe(), step.reward, step.terminated, step.truncated, step.duration]
        held += new
        copies += [array.copy() for array in new]
    assert all((one == two).all() for one, two in zip(held, copies, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_global_random_state_is_neither_used_nor_touched(name):
    """Issue 18: whatever the global generators hold, episodes are the same and they stay so."""
    seen = []
    for seed in (1, 2):
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        before = random.getstate(), repr(np.random.get_state())  # noqa: NPY002
        played = play_raw(environments()[name](2), 4)
        assert (random.getstate(), repr(np.random.get_state())) == before  # noqa: NPY002
        seen.append([played[i].digest() for i in range(4)])
    assert seen[0] == seen[1]


# --- copies ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_a_copy_goes_on_like_its_original_and_alone(name, how):
    env = environments()[name](3)
    episodes = started(env)
    episodes.advance(hashed_actions(env, np.arange(3), np.ones(3), episodes.masks()))
    twin = copy.deepcopy(episodes) if how == "deepcopy" else pickle.loads(pickle.dumps(episodes))
    assert type(twin.env) is type(env)
    assert state_of(twin) == state_of(episodes)
    live = ~episodes.ended
    actions = hashed_actions(env, np.arange(3), np.full(3, 2), episodes.masks())
    before = state_of(twin)
    episodes.advance(actions, live)
    assert state_of(twin) == before
    twin.advance(actions, live)
    assert state_of(twin) == state_of(episodes)


def test_a_copy_keeps_settings_and_a_horizon_that_was_shortened():
    env = Drift(2, horizon=9, gain=0.25)
    env.horizon = 4
    twin = pickle.loads(pickle.dumps(env))
    assert (twin.rows, twin.horizon, twin.gain) == (2, 4, 0.25)


class Bare(BatchEnv):
    """No snapshot."""

    begin = Counter.begin
    advance = Counter.advance
    observe = Counter.observe


def test_an_environment_without_snapshot_is_neither_copied_nor_pickled():
    for attempt in (copy.deepcopy, copy.copy, pickle.dumps):
        with pytest.raises(TypeError, match="Bare"):
            attempt(Bare(1))


@pytest.mark.parametrize("name", [*SINGLE, *TEAMS])
def test_some_rows_are_stored_and_put_back(name):
    env = build(name, 3)
    episodes = started(env)
    chosen = np.array([True, False, True])
    stored = env.snapshot(chosen)
    actions = hashed_actions(env, np.arange(3), np.ones(3), episodes.masks())
    episodes.advance(actions)
    later = env.snapshot(~chosen)
    env.restore(stored, chosen)
    for key, value in env.snapshot(chosen).items():
        assert value.tobytes() == stored[key].tobytes()
    for key, value in env.snapshot(~chosen).items():
        assert value.tobytes() == later[key].tobytes()


def test_what_is_not_finite_is_found_by_its_path():
    tree = {"a": (np.zeros(2), np.array([0.0, np.nan])), "b": np.zeros(2, np.int64)}
    assert not_finite(tree) == "a/1"
    assert not_finite(np.array([np.inf])) == "observation"
    assert not_finite({"b": np.zeros(2)}) is None
