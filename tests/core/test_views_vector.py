"""The vector view in its three autoreset modes."""

import copy
import pickle
import random
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

import palestra
from palestra.registry import catalogue
from palestra.spaces import leaves
from palestra.views.vector import VectorView

from .playing import SEED, Record, alone, environments, one_row, play_raw, play_vector
from .toys import (
    ECHOED,
    Corridor,
    Counter,
    Delivery,
    Drift,
    Echo,
    Swarm,
    TwoLocks,
    legal_actions,
)

REGISTERED = [entry.id for entry in catalogue().values() if not entry.agents]
NAMES = alone()
MODES = ["NEXT_STEP", "SAME_STEP", "DISABLED"]


def state_of(view: VectorView) -> bytes:
    return b"".join(array.tobytes() for array in view.episodes.snapshot().values())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NAMES)
def test_episodes_equal_the_raw_environment_bit_for_bit(name, mode):
    """Same observations (the last one included), rewards, ends, durations and metrics."""
    raw = play_raw(environments()[name](1), 20)
    seen = play_vector(VectorView(environments()[name](4), mode), 20)
    for number in range(20):
        assert seen[number].bits() == raw[number].bits()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NAMES)
def test_arrays_belong_to_the_batched_spaces(name, mode):
    view = VectorView(environments()[name](3), mode)
    assert isinstance(view, VectorEnv)
    assert view.metadata["autoreset_mode"] is AutoresetMode[mode]
    assert view.observation_space == batch_space(view.single_observation_space, 3)
    seen, _ = view.reset(seed=1)
    assert view.observation_space.contains(seen)
    seen, reward, terminated, truncated, _ = view.step(view.action_space.sample())
    assert view.observation_space.contains(seen)
    assert (reward.dtype, reward.shape) == (np.float64, (3,))
    for over in (terminated, truncated):
        assert (over.dtype, over.shape) == (np.bool_, (3,))


@pytest.mark.parametrize("mode", MODES)
def test_five_episodes_of_three_steps_have_length_and_return_three(mode):
    """Issues 8 and 13: lengths and returns in all modes; the last observation is the length."""
    seen = play_vector(VectorView(Counter(4), mode), 20)
    for record in seen.values():
        assert len(record.rewards) == 3
        assert sum(record.rewards) == 3.0
        assert record.observations[-1].tolist() == [3.0]
        assert record.observations[0].tolist() == [0.0]
        assert record.metrics == {"count": 3}


def test_next_step_begins_at_the_following_call_with_reward_0():
    view = VectorView(Counter(2, length=2))
    view.reset(seed=0)
    view.step([0, 0])
    seen, reward, terminated, _, infos = view.step([0, 0])
    assert (seen[:, 0].tolist(), reward.tolist(), terminated.tolist()) == ([2, 2], [1, 1], [1, 1])
    assert infos["episode_id"].tolist() == [0, 1]
    assert infos["_episode_id"].all()
    seen, reward, terminated, _, infos = view.step([1, 1])
    assert (seen[:, 0].tolist(), reward.tolist(), terminated.tolist()) == ([0, 0], [0, 0], [0, 0])
    assert infos["episode_id"].tolist() == [2, 3]
    assert not infos["_dt"].any()
    assert view.step([1, 1])[0][:, 0].tolist() == [1, 1]


def test_same_step_returns_the_new_start_and_the_last_observation_beside_it():
    view = VectorView(Counter(2, length=None, horizon=2), AutoresetMode.SAME_STEP)
    view.reset(seed=0)
    assert "final_obs" not in view.step([0, 0])[4]
    seen, reward, terminated, truncated, infos = view.step([0, 0])
    assert seen[:, 0].tolist() == [0, 0]
    assert [one.tolist() for one in infos["final_obs"]] == [[2], [2]]
    assert (reward.tolist(), terminated.tolist(), truncated.tolist()) == ([1, 1], [0, 0], [1, 1])
    assert infos["final_info"]["episode_id"].tolist() == [0, 1]
    assert infos["episode_id"].tolist() == [2, 3]


def test_disabled_waits_for_the_rows_to_be_named():
    env = Counter(3, length=None)
    view = VectorView(env, "DISABLED")
    view.reset(seed=0)
    env.length, env.count[1] = 3, 2
    assert view.step([0, 0, 0])[2].tolist() == [False, True, False]
    before = state_of(view)
    with pytest.raises(ResetNeeded, match=r"rows \[1\] are over"):
        view.step([0, 0, 0])
    assert state_of(view) == before
    seen, infos = view.reset(options={"reset_mask": np.array([False, True, False])})
    assert seen[:, 0].tolist() == [1, 0, 1]
    assert infos["episode_id"].tolist() == [0, 4, 2]
    assert infos["_episode_id"].tolist() == [False, True, False]
    assert view.step([0, 0, 0])[0][:, 0].tolist() == [2, 1, 2]


@pytest.mark.parametrize(
    "mask", [[True, False], np.array([1, 0]), np.array([True]), np.array([False, False]), None]
)
def test_a_reset_mask_must_be_a_mask_that_names_a_row(mask):
    view = VectorView(Counter(2), "DISABLED")
    view.reset(seed=0)
    before = state_of(view)
    with pytest.raises(ValueError, match=r"options\['reset_mask'\]"):
        view.reset(options={"reset_mask": mask})
    assert state_of(view) == before


def test_a_seed_for_some_rows_leaves_the_others_alone():
    view = VectorView(Drift(3), "DISABLED")
    view.reset(seed=0)
    view.step(np.zeros((3, 1), np.float32))
    running = {k: v[[0, 2]].copy() for k, v in view.episodes.snapshot().items()}
    keys = view.episodes.streams.dynamics.copy()
    view.reset(seed=9, options={"reset_mask": np.array([False, True, False])})
    for key, value in view.episodes.snapshot().items():
        assert (value[[0, 2]] == running[key]).all()
    assert view.episodes.streams.seed.tolist() == [0, 9, 0]
    assert (view.episodes.streams.dynamics != keys).tolist() == [False, True, False]
    fresh = VectorView(Drift(3))
    fresh.reset(seed=9)
    assert view.batch.x[1] == fresh.batch.x[1]


def test_an_integer_seed_gives_row_r_episodes_r_and_r_plus_b():
    view = VectorView(Counter(3, length=1), "SAME_STEP")
    assert view.reset(seed=4)[1]["episode_id"].tolist() == [0, 1, 2]
    assert view.step([0, 0, 0])[4]["episode_id"].tolist() == [3, 4, 5]
    assert view.reset()[1]["episode_id"].tolist() == [6, 7, 8]  # no seed: on it goes
    assert view.reset(seed=4)[1]["episode_id"].tolist() == [0, 1, 2]


def test_a_list_of_seeds_gives_each_row_episode_0_of_its_own():
    view = VectorView(Drift(3))
    _, infos = view.reset(seed=[5, 6, 5])
    assert infos["seed"].tolist() == [5, 6, 5]
    assert infos["episode_id"].tolist() == [0, 0, 0]
    assert view.batch.x[0] == view.batch.x[2] != view.batch.x[1]
    with pytest.raises(ValueError, match="seed: got 2 seeds, allowed 3"):
        view.reset(seed=[1, 2])


def test_an_episode_is_picked_for_all_rows_by_one_number():
    view = VectorView(Counter(2))
    assert view.reset(seed=0, options={"episode": 8})[1]["episode_id"].tolist() == [8, 8]


def test_the_first_reset_must_begin_all_rows():
    view = VectorView(Counter(2))
    with pytest.raises(ResetNeeded, match="no episode has begun"):
        view.step([0, 0])
    with pytest.raises(ResetNeeded, match="first reset must begin all rows"):
        view.reset(options={"reset_mask": np.array([True, False])})


ILLEGAL = {
    "shape": (Counter, [0, 0, 0]),
    "outside": (Counter, [0, 2]),
    "float": (Counter, [0.0, 0.0]),
    "nan": (Drift, [[0.0], [np.nan]]),
    "inf": (Drift, [[-np.inf], [0.0]]),
    "above": (Drift, [[0.0], [2.0]]),
    "no rows": (Drift, [0.0]),
    "masked": (Corridor, [1, 1]),
    "masked dial": (TwoLocks, [[1, 1], [0, 1]]),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", ILLEGAL)
def test_an_illegal_action_raises_and_changes_nothing(case, mode):
    make, actions = ILLEGAL[case]
    view = VectorView(make(2), mode)
    view.reset(seed=0)
    if make is Corridor:
        view.step([1, 1])
    elif make is TwoLocks:
        view.step([[0, 0], [0, 0]])
    before = state_of(view)
    with pytest.raises((TypeError, ValueError), match="action"):
        view.step(actions)
    assert state_of(view) == before
    view.step(view.action_space.sample())


def test_an_illegal_action_begins_no_episode_either():
    view = VectorView(Counter(2, length=1), "NEXT_STEP")
    view.reset(seed=0)
    view.step([0, 0])
    before = state_of(view)
    with pytest.raises(ValueError, match="action"):
        view.step([0, 2])
    assert state_of(view) == before
    assert view.step([0, 0])[4]["episode_id"].tolist() == [2, 3]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ECHOED)
def test_spaces_of_every_kind_round_trip(kind, mode):
    """Issue 15: actions come back as observations, batched, in every mode."""
    view = VectorView(Echo(3, kind=kind), mode)
    view.reset(seed=0)
    for number in range(4):
        random_numbers = np.random.default_rng(number).random
        actions = legal_actions(view.single_action_space, random_numbers, (3,))
        seen = view.step(actions)[0]
        assert view.observation_space.contains(seen)
        assert Record([seen]).bits() == Record([actions]).bits()


def test_sampled_actions_are_legal_and_all_legal_ones_are_sampled():
    for env in (Corridor(64), TwoLocks(64, first=5)):
        view = VectorView(env, "SAME_STEP")
        view.reset(seed=0)
        view.action_space.seed(0)
        first = view.action_space.sample()
        assert len(np.unique(first, axis=0)) == (3 if first.ndim == 1 else 6)
        for _ in range(30):
            actions = view.action_space.sample()
            assert view.action_space.contains(actions)
            view.step(actions)


@pytest.mark.parametrize("mode", MODES)
def test_arrays_that_were_handed_out_never_change(mode):
    """Issue 12."""
    view = VectorView(Drift(3, horizon=4), mode)
    seen, infos = view.reset(seed=0)
    held, copies = [], []
    for _ in range(100):
        if mode == "DISABLED" and view.episodes.ended.any():
            seen, infos = view.reset(options={"reset_mask": view.episodes.ended.copy()})
        seen, *numbers, infos = view.step(np.ones((3, 1), np.float32))
        new = [seen, *numbers, *arrays_of(infos)]
        held += new
        copies += [copy.deepcopy(array) for array in new]
    for one, two in zip(held, copies, strict=True):
        if one.dtype == object:
            assert [x if x is None else x.tolist() for x in one] == [
                x if x is None else x.tolist() for x in two
            ]
        else:
            assert one.tobytes() == two.tobytes()


def arrays_of(infos: dict) -> list[np.ndarray]:
    found = []
    for value in infos.values():
        found += arrays_of(value) if isinstance(value, dict) else [value]
    return found


def test_what_a_user_writes_into_what_was_handed_out_has_no_effect():
    views = [VectorView(Drift(3, horizon=4), "SAME_STEP") for _ in range(2)]
    for view in views:
        view.reset(seed=0)
    for _ in range(10):
        results = [view.step(np.ones((3, 1), np.float32)) for view in views]
        assert (results[0][0] == results[1][0]).all()
        *arrays, infos = results[0]
        for array in [*arrays, *arrays_of(infos)]:
            array[...] = 77 if array.dtype != object else None


def test_durations_are_in_the_infos():
    view = VectorView(Delivery(2))
    view.reset(seed=0)
    infos = view.step([0, 2])[4]
    assert infos["_dt"].all()
    assert np.floor(infos["dt"]).tolist() == [1.0, 3.0]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NAMES)
def test_a_copy_of_a_running_view_goes_on_like_its_original(name, mode):
    view = VectorView(environments()[name](3), mode)
    view.reset(seed=2)
    view.action_space.seed(1)
    actions = view.action_space.sample()
    for twin in (copy.deepcopy(view), pickle.loads(pickle.dumps(view))):
        expected = copy.deepcopy(view).step(actions)
        got = twin.step(actions)
        assert Record([got[0]]).bits() == Record([expected[0]]).bits()
        assert [a.tolist() for a in got[1:4]] == [a.tolist() for a in expected[1:4]]
        if hasattr(twin, "action_masks"):
            assert twin.action_masks.__self__ is twin.episodes


def test_pictures_are_one_a_row():
    view = VectorView(Counter(2), render_mode="rgb_array")
    with pytest.raises(ResetNeeded):
        view.render()
    view.reset(seed=0)
    assert [picture.shape for picture in view.render()] == [(4, 6, 3)] * 2
    assert VectorView(Counter(2)).render() is None
    with pytest.raises(ValueError, match="render_mode: got 'human', allowed rgb_array"):
        VectorView(Counter(2), render_mode="human")


def test_modes_go_by_their_names_and_others_are_refused():
    assert VectorView(Counter(1), "SameStep").autoreset_mode is AutoresetMode.SAME_STEP
    with pytest.raises(ValueError, match="autoreset_mode: got 'never', allowed NEXT_STEP"):
        VectorView(Counter(1), "never")
    with pytest.raises(ValueError, match="env: got agents"):
        VectorView(Swarm(2))


@pytest.mark.parametrize("name", REGISTERED)
def test_make_vec_builds_the_native_view(name):
    view = gymnasium.make_vec(name, num_envs=3, max_episode_steps=2, autoreset_mode="SAME_STEP")
    assert isinstance(view, VectorView)
    assert view.num_envs == 3
    assert view.autoreset_mode is AutoresetMode.SAME_STEP
    view.action_space.seed(0)
    view.reset(seed=SEED)
    view.step(view.action_space.sample())
    *_, terminated, truncated, _ = view.step(view.action_space.sample())
    assert (terminated | truncated).all() or view.episodes.streams.step.max() < 2
    twin = palestra.make(name, "vector", 3, max_episode_steps=2)
    assert twin.batch.horizon == view.batch.horizon == 2
    assert palestra.make(name, "vector").num_envs == 64


@pytest.mark.parametrize("name", REGISTERED)
def test_gymnasiums_own_vector_of_single_views_sees_the_same_episode(name):
    """`vectorization_mode="sync"`: each row is a single view, seeded with seed + row."""
    synchronous = gymnasium.make_vec(name, num_envs=2, vectorization_mode="sync")
    view = palestra.make(name, "vector", 2)
    one, _ = synchronous.reset(seed=[3, 4])
    two, _ = view.reset(seed=[3, 4])
    for row in range(2):
        assert Record([one_row(one, row)]).bits() == Record([one_row(two, row)]).bits()


def test_global_random_state_is_untouched():
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    before = random.getstate(), repr(np.random.get_state())  # noqa: NPY002
    view = VectorView(Corridor(3))
    view.reset(seed=5)
    view.action_space.seed(0)
    for _ in range(30):
        view.step(view.action_space.sample())
    assert (random.getstate(), repr(np.random.get_state())) == before  # noqa: NPY002


def test_unknown_options_warn_once():
    class YetAnother(Counter):
        pass

    view = VectorView(YetAnother(2))
    with pytest.warns(UserWarning, match=r"does not know 'begin'; known: \['episode', 'start'\]"):
        view.reset(seed=0, options={"begin": 1})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        view.reset(options={"begin": 1, "start": 3})
    assert [leaf.tolist() for _, leaf in leaves(view.episodes.observe())] == [[[3.0], [3.0]]]
