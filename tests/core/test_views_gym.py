"""The Gymnasium view: checkers, equality with the raw environment, seeds, illegal actions."""

import copy
import pickle
import random
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from stable_baselines3.common.env_checker import check_env as check_env_of_sb3

import palestra
from palestra.batch import Episodes
from palestra.registry import catalogue
from palestra.spaces import LegalDiscrete, LegalMultiDiscrete, leaves
from palestra.views.gym import GymView
from palestra.views.vector import VectorView

from .playing import Record, alone, as_arrays, environments, play_gym, play_raw
from .toys import (
    SINGLE,
    Corridor,
    Counter,
    Delivery,
    Drift,
    Echo,
    ReachGoal,
    Swarm,
    TwoLocks,
    legal_actions,
)

REGISTERED = [entry.id for entry in catalogue().values() if not entry.agents]
NAMES = alone()
# Stable-Baselines3 has no Tuple spaces and no nested ones.
FOR_SB3 = [name for name in NAMES if name not in ("Echo-tuple", "Echo-nested", "Echo-dict")]


def view_of(name: str) -> GymView:
    return GymView(environments()[name](1))


def state_of(view: GymView) -> bytes:
    arrays = list(view.episodes.snapshot().values())
    return b"".join(array.tobytes() for array in arrays)


@pytest.mark.filterwarnings("ignore:.*Box observation space m")
@pytest.mark.parametrize("name", NAMES)
def test_gymnasiums_checker_passes(name):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*(deprecated|seed|random|options)")
        check_env(view_of(name), skip_render_check=True)


@pytest.mark.parametrize("name", REGISTERED)
def test_gymnasiums_checker_passes_with_pictures(name):
    check_env(gymnasium.make(name, render_mode="rgb_array").unwrapped)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", FOR_SB3)
def test_stable_baselines3s_checker_passes(name):
    check_env_of_sb3(view_of(name))


@pytest.mark.parametrize("name", REGISTERED)
def test_stable_baselines3s_checker_has_nothing_to_say_about_registered_environments(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env_of_sb3(palestra.make(name))


@pytest.mark.parametrize("name", NAMES)
def test_episodes_equal_the_raw_environment_bit_for_bit(name):
    raw = play_raw(environments()[name](5), 20)
    seen = play_gym(view_of(name), 20)
    for number in range(20):
        assert seen[number].bits() == raw[number].bits()


@pytest.mark.parametrize("name", NAMES)
def test_observations_belong_to_the_space_with_its_own_dtypes(name):
    view = view_of(name)
    seen, _ = view.reset(seed=1)
    for _ in range(5):
        assert view.observation_space.contains(seen)
        blank = dict(leaves(view.episodes.observe_blank()))
        for path, leaf in leaves(as_arrays(seen)):
            assert leaf.dtype == blank[path].dtype
        seen, _, terminated, truncated, _ = view.step(view.action_space.sample())
        if terminated or truncated:
            seen, _ = view.reset()


def test_reset_with_a_seed_is_episode_0_without_one_the_next_and_by_option_any():
    view = GymView(Drift(1))
    starts = {}
    for number in range(3):
        starts[number], info = view.reset(seed=7) if number == 0 else view.reset()
        assert info == {"seed": 7, "episode_id": number}
    seen, info = view.reset(options={"episode": 1})
    assert info == {"seed": 7, "episode_id": 1}
    assert (seen == starts[1]).all()
    seen, _ = view.reset()  # goes on from there
    assert (seen == starts[2]).all()
    seen, info = view.reset(seed=7, options={"episode": 2})
    assert (seen == starts[2]).all()
    other, _ = view.reset(seed=8)
    assert other[0] != starts[0][0]


def test_without_a_seed_one_is_drawn_and_told():
    seeds = [GymView(Drift(1)).reset()[1]["seed"] for _ in range(2)]
    assert seeds[0] != seeds[1]


@pytest.mark.parametrize(
    ("seed", "error"), [(-1, ValueError), (2**64, ValueError), ("1", TypeError)]
)
def test_a_seed_out_of_range_is_refused(seed, error):
    with pytest.raises(error, match="seed: got"):
        GymView(Counter(1)).reset(seed=seed)


def test_large_and_numpy_seeds_are_seeds():
    for seed in (2**64 - 1, np.int64(3), np.uint64(2**63)):
        assert GymView(Counter(1)).reset(seed=seed)[1]["seed"] == int(seed)


def test_a_step_before_the_reset_and_after_the_end_is_refused():
    view = GymView(Counter(1, length=2))
    with pytest.raises(ResetNeeded, match="call reset"):
        view.step(0)
    view.reset(seed=0)
    view.step(0)
    assert view.step(0)[2] is True
    before = state_of(view)
    with pytest.raises(ResetNeeded, match="call reset"):
        view.step(0)
    assert state_of(view) == before
    view.reset()
    assert view.step(0)[2] is False


def test_info_carries_the_seconds_of_each_step_and_ids_and_metrics_at_the_end():
    view = GymView(Delivery(1))
    view.reset(seed=3)
    infos = [view.step(1)[4] for _ in range(3)]
    assert [set(info) for info in infos] == [{"dt"}, {"dt"}, {"dt", "seed", "episode_id"}]
    assert all(2.0 <= info["dt"] < 3.0 for info in infos)
    view = GymView(Counter(1, length=1))
    view.reset(seed=3)
    assert view.step(0)[4] == {"dt": 1.0, "seed": 3, "episode_id": 0, "count": 1}


ILLEGAL = {
    "too large": (Counter, {}, [], 2),
    "negative": (Counter, {}, [], -1),
    "float": (Counter, {}, [], 1.0),
    "none": (Counter, {}, [], None),
    "array of one": (Counter, {}, [], np.array([0])),
    "string": (Counter, {}, [], "0"),
    "nan": (Drift, {}, [], np.array([np.nan], np.float32)),
    "inf": (Drift, {}, [], np.array([np.inf], np.float32)),
    "above": (Drift, {}, [], np.array([1.001], np.float32)),
    "two components": (Drift, {}, [], np.zeros(2, np.float32)),
    "scalar for a box": (Drift, {}, [], np.float32(0.0)),
    "masked": (Corridor, {}, [1], 1),
    "masked from minus one": (Corridor, {"start": -1}, [0], 0),
    "masked and outside": (Corridor, {}, [], 3),
    "masked float": (Corridor, {}, [], 1.0),
    "masked dial": (TwoLocks, {}, [[0, 0]], [1, 0]),
    "tuple of one": (Echo, {"kind": "tuple"}, [], (0,)),
    "dict without a part": (Echo, {"kind": "dict"}, [], {"binary": np.zeros(4, np.int8)}),
}


@pytest.mark.parametrize("case", ILLEGAL)
def test_an_illegal_action_raises_and_changes_nothing(case):
    make, settings, first, action = ILLEGAL[case]
    view = GymView(make(1, **settings))
    view.reset(seed=11)
    for one in first:
        view.step(one)
    before = state_of(view)
    with pytest.raises((TypeError, ValueError), match="action"):
        view.step(action)
    assert state_of(view) == before
    view.step(view.action_space.sample())


def test_integers_of_any_kind_are_choices():
    view = GymView(Counter(1, length=10))
    view.reset(seed=0)
    for action in (1, np.int64(1), np.uint8(1), np.array(1)):
        view.step(action)


@pytest.mark.parametrize(
    "kind", ["dict", "tuple", "nested", "binary", "discrete", "many", "pixels"]
)
def test_spaces_of_every_kind_round_trip(kind):
    """Issue 15."""
    view = GymView(Echo(1, kind=kind))
    view.reset(seed=0)
    for number in range(5):
        action = legal_actions(view.action_space, np.random.default_rng(number).random, ())
        seen = view.step(action)[0]
        assert view.observation_space.contains(seen)
        assert Record([as_arrays(seen)]).bits() == Record([as_arrays(action)]).bits()


def test_arrays_that_were_handed_out_never_change():
    """Issue 12."""
    view = GymView(Drift(1))
    held = [view.reset(seed=0)[0]]
    copies = [held[0].copy()]
    for _ in range(100):
        seen, _, terminated, truncated, _ = view.step(view.action_space.sample())
        if terminated or truncated:
            seen, _ = view.reset()
        held.append(seen)
        copies.append(seen.copy())
    assert all((one == two).all() for one, two in zip(held, copies, strict=True))
    held[-1][:] = 99.0  # and what a user writes into them stays there
    assert (view.step(view.action_space.sample())[0] != 99.0).all()


def test_a_masked_view_samples_legal_actions():
    for env, kind in ((Corridor(1), LegalDiscrete), (TwoLocks(1), LegalMultiDiscrete)):
        view = GymView(env)
        assert isinstance(view.action_space, kind)
        view.action_space.seed(0)
        over = True
        for _ in range(200):
            if over:
                view.reset(seed=0)
            assert view.action_masks().dtype == np.bool_
            over = any(view.step(view.action_space.sample())[2:4])


def test_goals_are_rewarded_again_without_hidden_state():
    view = GymView(ReachGoal(1))
    view.reset(seed=0)
    seen, reward, *_, info = view.step(np.zeros(2, np.float32))
    assert view.compute_reward(seen["achieved_goal"], seen["desired_goal"], info) == reward
    many = np.zeros((9, 2), np.float32)
    assert (view.compute_reward(many, many, [{}] * 9) == 0.0).all()
    assert not hasattr(GymView(Counter(1)), "compute_reward")


def test_pictures_are_drawn_on_demand():
    view = GymView(Counter(1), render_mode="rgb_array")
    with pytest.raises(ResetNeeded):
        view.render()
    view.reset(seed=0)
    view.step(0)
    assert view.render().shape == (4, 6, 3)
    assert (view.render() == 1).all()
    assert GymView(Counter(1)).render() is None
    with pytest.raises(ValueError, match="render_mode: got 'ascii', allowed rgb_array, human"):
        GymView(Counter(1), render_mode="ascii")
    view.close()
    view.close()


def test_only_one_row_without_agents_is_a_single_environment():
    for env in (Counter(2), Swarm(1)):
        with pytest.raises(ValueError, match="allowed 1 row without agents"):
            GymView(env)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_a_copy_of_a_running_view_goes_on_like_its_original(name, how):
    view = view_of(name)
    view.reset(seed=2)
    twin = copy.deepcopy(view) if how == "deepcopy" else pickle.loads(pickle.dumps(view))
    view.action_space.seed(0)
    action = view.action_space.sample()
    seen, *rest = view.step(action)
    seen_by_twin, *rest_of_twin = twin.step(action)
    assert rest == rest_of_twin
    for (_, one), (_, two) in zip(
        leaves(as_arrays(seen)), leaves(as_arrays(seen_by_twin)), strict=True
    ):
        assert one.tobytes() == two.tobytes()
    assert state_of(view) == state_of(twin)
    view.reset()
    assert state_of(view) != state_of(twin)
    if hasattr(view, "action_masks"):  # the copy looks at its own masks
        assert twin.action_masks().shape == view.action_masks().shape
        assert twin.action_masks.__self__ is twin


def test_global_random_state_is_untouched():
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    before = random.getstate(), repr(np.random.get_state())  # noqa: NPY002
    view = GymView(Drift(1))
    view.reset(seed=5)
    view.action_space.seed(0)
    view.step(view.action_space.sample())
    view.reset()
    assert (random.getstate(), repr(np.random.get_state())) == before  # noqa: NPY002


def test_unknown_options_warn_once():
    class Another(Counter):
        pass

    view = GymView(Another(1))
    with pytest.warns(UserWarning, match=r"does not know 'begin'; known: \['episode', 'start'\]"):
        view.reset(seed=0, options={"begin": 1})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        view.reset(options={"begin": 1})
        view.reset(options={"start": 2})
    assert view.step(0)[0] == 3.0
    view.reset()
    assert view.step(0)[0] == 1.0


def test_options_that_are_refused_leave_the_running_episode_alone():
    view = GymView(Counter(1, length=10))
    view.reset(seed=0)
    view.step(0)
    before = state_of(view)
    for options in ({"episode": -1}, {"episode": "x"}):
        with pytest.raises((TypeError, ValueError), match="episode"):
            view.reset(seed=9, options=options)
        assert state_of(view) == before


class Strict(Counter):
    """Refuses to start above 9."""

    def begin(self, rows, streams, options) -> None:
        if options is not None and options[0].get("start", 0) > 9:
            raise ValueError("start: got more than 9")
        super().begin(rows, streams, options)


def test_after_an_option_that_the_environment_refuses_nothing_runs():
    single = GymView(Strict(1, length=20))
    several = VectorView(Strict(2, length=20), "DISABLED")
    for view, action in ((single, 0), (several, [0, 0])):
        view.reset(seed=0)
        with pytest.raises(ValueError, match="start: got more than 9"):
            view.reset(options={"start": 10})
        with pytest.raises(ResetNeeded):
            view.step(action)
        view.reset(options={"start": 9})
        view.step(action)


@pytest.mark.parametrize("name", REGISTERED)
@pytest.mark.parametrize("limit", [1, 2])
def test_both_entry_points_accept_max_episode_steps(name, limit):
    for view in (
        gymnasium.make(name, max_episode_steps=limit),
        palestra.make(name, max_episode_steps=limit),
    ):
        view.action_space.seed(0)
        view.reset(seed=0)
        for now in range(1, limit + 1):
            _, _, terminated, truncated, _ = view.step(view.action_space.sample())
            if terminated:
                break
            assert truncated is (now == limit)
    assert gymnasium.spec(name).max_episode_steps is None


def test_max_episode_steps_can_only_shorten_the_horizon():
    assert palestra.make(Drift, max_episode_steps=5).batch.horizon == 5
    assert palestra.make(Drift, max_episode_steps=500).batch.horizon == 20
    assert palestra.make(Drift, horizon=None, max_episode_steps=500).batch.horizon == 500
    with pytest.raises(ValueError, match="max_episode_steps: got 0, allowed an integer"):
        palestra.make(Drift, max_episode_steps=0)


def test_the_kinds_of_spaces_of_the_toys_are_all_there():
    kinds = {type(SINGLE[name][0](1, **SINGLE[name][1]).action_space) for name in SINGLE}
    assert {spaces.Dict, spaces.Tuple, spaces.MultiBinary, spaces.MultiDiscrete} < kinds


def test_episodes_and_view_agree_on_when_an_episode_is_over():
    view = GymView(Counter(1, horizon=2))
    view.reset(seed=0)
    assert isinstance(view.episodes, Episodes)
    view.step(0)
    assert not view.episodes.ended[0]
    view.step(0)
    assert view.episodes.ended[0]
