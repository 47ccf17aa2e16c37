"""Plain Gymnasium environments as rows, with the same contract."""

import copy
import pickle
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

import palestra
from palestra.batch import Episodes
from palestra.gym_batch import GymBatch
from palestra.views.gym import GymView
from palestra.views.sb3 import SB3View
from palestra.views.vector import VectorView

from .playing import play_gym, play_raw, play_sb3, play_vector
from .toys import Corridor, OneBuffer, ReachGoal

CARTPOLE = "CartPole-v1"


def buffered(rows: int) -> GymBatch:
    return GymBatch(rows, OneBuffer, metrics=["height"])


def cartpoles(rows: int) -> GymBatch:
    return GymBatch(rows, CARTPOLE)


@pytest.mark.parametrize("make", [buffered, cartpoles])
def test_an_episode_is_the_same_bits_in_any_row_and_view(make):
    raw = {n: r.bits() for n, r in play_raw(make(1), 12).items()}
    for rows in (3, 7):
        assert {n: r.bits() for n, r in play_raw(make(rows), 12).items()} == raw
    assert {n: r.bits() for n, r in play_gym(GymView(make(1)), 12).items()} == raw
    for mode in AutoresetMode:
        seen = play_vector(VectorView(make(3), mode), 12)
        assert {n: r.bits() for n, r in seen.items()} == raw
    cast = {n: r.with_float32_rewards().bits() for n, r in play_raw(make(1), 12).items()}
    assert {n: r.bits() for n, r in play_sb3(SB3View(make(3)), 12).items()} == cast


def test_an_episode_is_that_of_the_environment_seeded_from_the_stream():
    batch = cartpoles(2)
    episodes = Episodes(batch)
    episodes.seed(3)
    episodes.begin(batch.everyone)
    for row in range(2):
        plain = gymnasium.make(CARTPOLE)
        seen, _ = plain.reset(seed=episodes.streams.seed32(row))
        assert (episodes.observe()[row] == seen).all()
        for _ in range(5):
            seen, reward, *_ = plain.step(1)
        assert reward == 1.0
    for _ in range(5):
        episodes.advance([1, 1])
    assert (episodes.observe()[1] == seen).all()


def test_a_buffer_that_the_environment_keeps_writing_into_does_no_harm():
    """Issue 12: the terminal observation is the terminal one, and what was handed out stays."""
    view = VectorView(buffered(2), "SAME_STEP")
    view.reset(seed=0)
    held, copies = [], []
    for now in range(1, 101):
        seen, *_, infos = view.step([0, 1])
        if now % 4 == 0:
            assert [one[0] for one in infos["final_obs"]] == [4.0, 4.0]
            assert seen[:, 0].tolist() == [0.0, 0.0]
            held += list(infos["final_obs"])
        held.append(seen)
        copies += [one.copy() for one in held[len(copies) :]]
    assert all((one == two).all() for one, two in zip(held, copies, strict=True))


def test_checkers_pass_on_the_view_that_they_fail_on_without_it():
    with pytest.raises(AssertionError):
        check_env(OneBuffer(), skip_render_check=True)
    check_env(GymView(buffered(1)), skip_render_check=True)


def test_time_limits_of_its_own_wrappers_are_truncations_and_the_horizon_adds_one():
    class Endless(OneBuffer):
        def __init__(self) -> None:
            super().__init__(lasts=1000)

    def limited():
        return gymnasium.wrappers.TimeLimit(Endless(), 5)

    for make, horizon, length in ((limited, None, 5), (limited, 3, 3), (Endless, 4, 4)):
        record = play_raw(GymBatch(1, make, horizon=horizon), 1)[0]
        assert len(record.rewards) == length
        assert record.truncated
        assert not record.terminated


def test_chosen_entries_of_info_are_metrics():
    record = play_raw(buffered(2), 2)[1]
    assert record.metrics == {"height": float(record.observations[-1][1])}
    absent = play_raw(GymBatch(1, OneBuffer, metrics=["nothing"]), 1)[0].metrics["nothing"]
    assert np.isnan(absent)


def test_the_environment_gets_an_action_of_its_own():
    class Vandal(gymnasium.Env):
        observation_space = spaces.Box(-9.0, 9.0, (1,), np.float32)
        action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

        def reset(self, *, seed=None, options=None):
            return np.zeros(1, np.float32), {}

        def step(self, action):
            action[:] = 7.0
            return np.zeros(1, np.float32), 0.0, False, False, {}

    view = VectorView(GymBatch(2, Vandal))
    view.reset(seed=0)
    actions = np.zeros((2, 1), np.float32)
    view.step(actions)
    assert not actions.any()


def test_options_reach_the_environment_without_the_number_of_the_episode():
    seen = []

    class Listener(OneBuffer):
        def reset(self, *, seed=None, options=None):
            seen.append(options)
            return super().reset(seed=seed)

    view = GymView(GymBatch(1, Listener))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        view.reset(seed=0)
        view.reset(options={"episode": 4})
        view.reset(options={"episode": 4, "low": -0.1})
    assert seen == [None, None, {"low": -0.1}]


class Returns(gymnasium.Env):
    """Returns whatever it is told as its first observation."""

    observation_space = spaces.Dict(a=spaces.Box(-1.0, 1.0, (2,), np.float32), b=spaces.Discrete(3))
    action_space = spaces.Discrete(2)

    def __init__(self, seen) -> None:
        self.seen = seen

    def reset(self, *, seed=None, options=None):
        return self.seen, {}


@pytest.mark.parametrize(
    "seen",
    [
        {"a": np.zeros(2)},
        {"a": np.zeros(3), "b": 0},
        {"a": np.zeros(1), "b": 0},
        {"a": 0.0, "b": 0},
        {"a": np.zeros(2), "b": 0.5},
        {"a": ["x", "y"], "b": 0},
        None,
    ],
)
def test_an_observation_that_does_not_fit_its_space_is_refused_not_repaired(seen):
    batch = GymBatch(1, Returns, seen=seen)
    with pytest.raises(ValueError, match="observation: row 0: Returns returned something"):
        Episodes(batch).reset(0)
    fitting = GymBatch(1, Returns, seen={"a": [0.5, 0.25], "b": 2})
    episodes = Episodes(fitting)
    episodes.reset(0)
    assert episodes.observe()["a"].tolist() == [[0.5, 0.25]]
    assert episodes.observe()["a"].dtype == np.float32


class Answers(Returns):
    """Returns what it is told from `step`, and from `reset`."""

    observation_space = spaces.Discrete(2)

    def __init__(self, step, reset=(0, {})) -> None:
        self.answers = step, reset

    def reset(self, *, seed=None, options=None):
        return self.answers[1]

    def step(self, action):
        return self.answers[0]


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ((0, 1.0, True, {}), r"step: row 0: Answers returned 4 values, expected .*before Gym 0.26"),
        (0, r"step: row 0: Answers returned a int, expected \(observation, reward, terminated"),
        ((0, 1.0, "no", False, {}), "terminated: row 0: Answers returned 'no', expected True or"),
        ((0, 1.0, True, 0, {}), "truncated: row 0: Answers returned 0, expected True or False"),
        ((0, "1", True, False, {}), "reward: row 0: Answers returned '1', expected a number"),
        ((0, None, True, False, {}), "reward: row 0: Answers returned None, expected a number"),
        ((0, np.ones(1), True, False, {}), r"reward: row 0: Answers returned array\(\[1.\]\)"),
    ],
)
def test_what_step_returns_is_checked_by_kind(step, said):
    episodes = Episodes(GymBatch(1, Answers, step=step))
    episodes.reset(0)
    with pytest.raises(TypeError, match=said):
        episodes.advance(np.zeros(1, np.int64))


@pytest.mark.parametrize("reward", [1, 1.0, True, np.float32(1), np.int8(1)])
def test_numbers_of_any_kind_are_rewards(reward):
    episodes = Episodes(GymBatch(1, Answers, step=(0, reward, np.bool_(True), False, {})))
    episodes.reset(0)
    step, ended = episodes.advance(np.zeros(1, np.int64))
    assert (step.reward.tolist(), ended) == ([1.0], 1)


@pytest.mark.parametrize("reset", [0, (0,), (0, {}, 1)])
def test_reset_returns_observation_and_info(reset):
    with pytest.raises(TypeError, match=r"reset: row 0: Answers returned .*, expected \(observat"):
        Episodes(GymBatch(1, Answers, step=(), reset=reset)).reset(0)


def test_masks_and_goals_of_the_environment_are_passed_on():
    masked = GymBatch(3, lambda: GymView(Corridor(1)))
    view = SB3View(masked)
    view.seed(0)
    view.reset()
    view.step([1, 1, 1])
    assert np.stack(view.env_method("action_masks"))[:, 1].tolist() == [False] * 3
    with pytest.raises(ValueError, match="which the mask forbids"):
        view.step([1, 1, 1])
    goals = GymBatch(1, lambda: GymView(ReachGoal(1)))
    assert goals.compute_reward(np.zeros((4, 2)), np.ones((4, 2))).tolist() == [-1.0] * 4
    assert not hasattr(buffered(1), "action_masks")
    assert not hasattr(buffered(1), "compute_reward")


def test_what_is_no_environment_or_one_for_all_rows_is_refused():
    with pytest.raises(TypeError, match="make: built int, expected a gymnasium"):
        GymBatch(1, lambda: 3)
    one = OneBuffer()
    with pytest.raises(TypeError, match="each row needs its own copy"):
        GymBatch(2, lambda: one)


def test_pictures_come_from_the_copies():
    batch = GymBatch(1, OneBuffer, render_mode="rgb_array")
    view = GymView(batch, render_mode="rgb_array")
    view.reset(seed=0)
    view.step(0)
    assert (view.render() == 1).all()


@pytest.mark.parametrize("make", [buffered, cartpoles])
def test_a_copy_of_running_environments_goes_on_like_its_original_and_alone(make):
    view = VectorView(make(3))
    view.reset(seed=1)
    view.step([0, 1, 0])
    for twin in (copy.deepcopy(view), pickle.loads(pickle.dumps(view))):
        expected = copy.deepcopy(view)
        for actions in ([1, 0, 1], [0, 0, 0]):
            one, two = twin.step(actions), expected.step(actions)
            assert all((a == b).all() for a, b in zip(one[:4], two[:4], strict=True))


def test_make_takes_gymnasiums_ids_classes_and_functions():
    for target, name in ((CARTPOLE, "CartPole"), (OneBuffer, "OneBuffer")):
        view = palestra.make(target, "vector", rows=2, max_episode_steps=3)
        assert isinstance(view.batch, GymBatch)
        assert (view.batch.stream_name(), view.batch.horizon) == (name, 3)
    assert palestra.make(OneBuffer, lasts=2).batch.copies[0].lasts == 2
    view = palestra.make(lambda: OneBuffer(7))
    assert view.batch.copies[0].lasts == 7
    view.close()
    view.close()
