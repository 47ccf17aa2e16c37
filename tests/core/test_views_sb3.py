"""The Stable-Baselines3 view."""

import copy
import pickle
import random

import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv, VecMonitor, VecNormalize

import palestra
from palestra.batch import Episodes
from palestra.spaces import LegalDiscrete, leaves
from palestra.views.sb3 import SB3View

from .playing import Record, alone, as_arrays, environments, hashed_actions, play_raw, play_sb3
from .toys import (
    ECHOED,
    Convoy,
    Corridor,
    Counter,
    Delivery,
    Drift,
    Duet,
    Echo,
    ReachGoal,
    Swarm,
    TakeTurns,
    TwoLocks,
    legal_actions,
)

NAMES = alone()


def state_of(view: SB3View) -> bytes:
    return b"".join(array.tobytes() for array in view.snapshot().values())


@pytest.mark.parametrize("name", NAMES)
def test_episodes_equal_the_raw_environment_bit_for_bit_after_the_float32_cast(name):
    raw = play_raw(environments()[name](1), 20)
    seen = play_sb3(SB3View(environments()[name](4)), 20)
    for number in range(20):
        expected = raw[number].with_float32_rewards()
        # SB3 has one flag: an end is a termination unless TimeLimit.truncated says otherwise
        expected.truncated = expected.truncated and not expected.terminated
        assert seen[number].bits() == expected.bits()


def test_the_terminal_observation_is_the_state_before_the_reset():
    """Issue 9."""
    view = SB3View(Counter(2, length=2))
    view.seed(0)
    view.reset()
    view.step([0, 0])
    seen, _, done, infos = view.step([0, 0])
    assert done.all()
    assert seen.tolist() == [[0], [0]]
    assert [info["terminal_observation"].tolist() for info in infos] == [[2], [2]]
    assert [info["episode"]["l"] for info in infos] == [2, 2]
    assert [info["episode"]["r"] for info in infos] == [2.0, 2.0]
    assert [info["TimeLimit.truncated"] for info in infos] == [False, False]
    assert [info["episode_id"] for info in infos] == [0, 1]


def test_a_truncation_is_told_apart_from_a_termination():
    for env, truncated in (
        (Counter(1, length=None, horizon=1), True),
        (Counter(1, length=1), False),
    ):
        view = SB3View(env)
        view.reset()
        assert view.step([0])[3][0]["TimeLimit.truncated"] is truncated
    view = SB3View(Counter(1, length=1, horizon=1))  # both at once: nothing to bootstrap from
    view.reset()
    assert view.step([0])[3][0]["TimeLimit.truncated"] is False


def test_seed_s_gives_row_r_episodes_r_and_r_plus_b_at_the_next_reset():
    view = SB3View(Drift(3, horizon=1))
    view.seed(7)
    first = view.reset()
    assert view.reset_infos == [{"seed": 7, "episode_id": row} for row in range(3)]
    infos = view.step(np.zeros((3, 1), np.float32))[3]
    assert [info["episode_id"] for info in infos] == [0, 1, 2]
    view.reset()
    assert [info["episode_id"] for info in view.reset_infos] == [6, 7, 8]
    view.seed(7)
    assert (view.reset() == first).all()
    view.seed(8)
    assert (view.reset()[:, 0] != first[:, 0]).all()


def test_options_reach_the_next_reset_only():
    view = SB3View(Counter(2))
    view.set_options([{"start": 4}, {"episode": 9}])
    view.seed(0)
    assert view.reset().tolist() == [[4], [0]]
    assert [info["episode_id"] for info in view.reset_infos] == [0, 9]
    assert view.reset().tolist() == [[0], [0]]


def test_a_step_before_the_reset_is_refused():
    with pytest.raises(RuntimeError, match="call reset"):
        SB3View(Counter(1)).step([0])


ILLEGAL = {
    "shape": (Counter, [0, 0, 0]),
    "outside": (Counter, [0, 2]),
    "nan": (Drift, [[0.0], [np.nan]]),
    "inf": (Drift, [[np.inf], [0.0]]),
    "above": (Drift, [[0.0], [2.0]]),
    "masked": (Corridor, [1, 1]),
    "agents": (Swarm, np.full((6, 1), 1.5, np.float32)),
    "too few agents": (Swarm, np.zeros((5, 1), np.float32)),
    "agents without rows": (Swarm, np.float32(0.0)),
}


@pytest.mark.parametrize("case", ILLEGAL)
def test_an_illegal_action_raises_and_changes_nothing(case):
    make, actions = ILLEGAL[case]
    view = SB3View(make(2))
    view.seed(0)
    view.reset()
    if make is Corridor:
        view.step([1, 1])
    before = state_of(view)
    with pytest.raises((TypeError, ValueError), match="action"):
        view.step(actions)
    assert state_of(view) == before


@pytest.mark.parametrize("kind", ECHOED)
def test_spaces_of_every_kind_round_trip(kind):
    """Issues 15 and 42: with exactly the dtypes of the space."""
    view = SB3View(Echo(3, kind=kind))
    view.seed(0)
    view.reset()
    for number in range(5):
        actions = legal_actions(view.action_space, np.random.default_rng(number).random, (3,))
        seen, _, done, infos = view.step(actions)
        if number < 4:
            assert Record([seen]).bits() == Record([actions]).bits()
    assert done.all()
    last = as_arrays(infos[1]["terminal_observation"])
    for path, leaf in leaves(last):
        assert leaf.tolist() == dict(leaves(actions))[path][1].tolist()


def test_arrays_that_were_handed_out_never_change():
    view = SB3View(Drift(3, horizon=4))
    view.seed(0)
    held = [view.reset()]
    copies = [held[0].copy()]
    for _ in range(100):
        seen, reward, done, infos = view.step(np.ones((3, 1), np.float32))
        new = [seen, reward, done, *(i[k] for i in infos for k in i if k == "terminal_observation")]
        held += new
        copies += [array.copy() for array in new]
    assert len(held) > 350
    assert all((one == two).all() for one, two in zip(held, copies, strict=True))


def test_masks_are_given_by_method_and_attribute():
    view = SB3View(Corridor(3))
    view.seed(0)
    view.reset()
    view.step([1, 1, 1])
    assert isinstance(view.action_space, LegalDiscrete)
    masks = view.env_method("action_masks")
    assert np.stack(masks).tolist() == view.episodes.masks().tolist()
    assert len(view.env_method("action_masks", indices=[1])) == 1
    assert view.has_attr("action_masks")
    assert not SB3View(Counter(1)).has_attr("action_masks")


@pytest.mark.parametrize("env", [Corridor(5), TwoLocks(5), TakeTurns(2)])
def test_actions_sampled_row_after_row_are_legal(env):
    """As off-policy learners draw their first ones."""
    view = SB3View(env)
    view.seed(0)
    view.reset()
    view.action_space.seed(0)
    for _ in range(30):
        view.step(np.array([view.action_space.sample() for _ in range(view.num_envs)]))


def test_attributes_and_methods_are_answered_for_each_asked_row():
    view = SB3View(ReachGoal(3))
    view.reset()
    assert view.get_attr("horizon") == [10, 10, 10]
    assert view.get_attr("render_mode", 1) == [None]
    far, near = np.zeros((4, 2)), np.ones((4, 2))
    assert [
        r.tolist() for r in view.env_method("compute_reward", far, near, [{}] * 4, indices=[0])
    ] == [[-1.0] * 4]
    assert view.env_method("stream_name") == ["ReachGoal"] * 3
    assert view.env_is_wrapped(Monitor) == [True] * 3
    assert view.env_is_wrapped(VecNormalize, indices=[0]) == [False]
    view.set_attr("difficulty", 5)
    assert view.get_attr("difficulty") == [5, 5, 5]
    with pytest.raises(ValueError, match="rows share one environment"):
        view.set_attr("difficulty", 4, indices=[0])
    with pytest.raises(ValueError, match="'horizon' is fixed when the view is made"):
        view.set_attr("horizon", 4)
    with pytest.raises(AttributeError):
        view.get_attr("nothing_of_that_name")


def test_durations_and_metrics_are_in_the_infos():
    view = SB3View(Delivery(2))
    view.reset()
    infos = view.step([0, 2])[3]
    assert [int(info["dt"]) for info in infos] == [1, 3]
    view = SB3View(Counter(2, length=1))
    view.seed(1)
    view.reset()
    info = view.step([0, 0])[3][1]
    assert (info["count"], info["seed"], info["episode_id"]) == (1, 1, 1)


def test_pictures_are_one_a_row():
    view = SB3View(Counter(2), render_mode="rgb_array")
    view.reset()
    assert [picture.shape for picture in view.get_images()] == [(4, 6, 3)] * 2
    assert view.render().shape[2] == 3
    assert len(view.env_method("render", indices=[0])) == 1


def test_the_wrappers_of_stable_baselines3_fit():
    view = VecMonitor(VecNormalize(SB3View(Drift(4))))
    view.seed(0)
    view.reset()
    for _ in range(30):
        view.step(np.zeros((4, 1), np.float32))
    assert isinstance(view, VecEnv)


@pytest.mark.parametrize("name", NAMES)
def test_a_copy_of_a_running_view_goes_on_like_its_original(name):
    view = SB3View(environments()[name](3))
    view.seed(2)
    view.reset()
    masks = view.episodes.masks()
    actions = hashed_actions(view.batch, np.arange(3), np.ones(3), masks)
    for twin in (copy.deepcopy(view), pickle.loads(pickle.dumps(view))):
        expected, got = copy.deepcopy(view).step(actions), twin.step(actions)
        assert Record([got[0]]).bits() == Record([expected[0]]).bits()
        assert [a.tolist() for a in got[1:3]] == [a.tolist() for a in expected[1:3]]


def test_global_random_state_is_untouched():
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    before = random.getstate(), repr(np.random.get_state())  # noqa: NPY002
    view = SB3View(Drift(3))
    view.seed(5)
    view.reset()
    for _ in range(30):
        view.step(np.zeros((3, 1), np.float32))
    assert (random.getstate(), repr(np.random.get_state())) == before  # noqa: NPY002


# --- agents as rows ----------------------------------------------------------------------------


def play_agents(env, view, steps: int):
    """The raw environment and the view side by side: (step, raw, view) after each step."""
    episodes = Episodes(env)
    episodes.seed(3)
    episodes.begin(env.everyone)
    view.seed(3)
    assert (view.reset() == fold(env, episodes.observe())).all()
    streams = episodes.streams
    for _ in range(steps):
        actions = hashed_actions(env, streams.episode, streams.step + 1, episodes.masks())
        left = episodes.left.copy()
        step, _ = episodes.advance(actions)
        last = fold(env, episodes.observe())
        over = episodes.ended.copy()
        episodes.begin(over)
        flat = (
            np.stack([actions[a] for a in env.agents], 1) if isinstance(actions, dict) else actions
        )
        yield (
            step,
            left,
            over,
            last,
            fold(env, episodes.observe()),
            view.step(flat.reshape(view.num_envs, *flat.shape[2:])),
        )


def fold(env, seen):
    if isinstance(seen, dict):
        seen = np.stack([seen[agent] for agent in env.agents], 1)
    return seen.reshape(-1, *seen.shape[2:])


@pytest.mark.parametrize("make", [Swarm, TakeTurns])
def test_each_agent_is_a_row_of_its_own(make):
    """Rows are row * agents + agent; masks, ends and agents that leave agree with the raw one."""
    view = SB3View(make(5))
    assert view.num_envs == 15
    absent_seen = truncated_seen = 0
    for step, left, over, last, now, (seen, reward, done, infos) in play_agents(make(5), view, 80):
        assert (seen == now).all()
        assert (reward == step.reward.reshape(-1).astype(np.float32)).all()
        ends = (step.terminated | over[:, np.newaxis]).reshape(-1)
        assert (done == ends).all()
        for place, info in enumerate(infos):
            row, agent = divmod(place, 3)
            assert info.get("absent", False) == bool(left[row, agent])
            assert ("terminal_observation" in info) == bool(ends[place])
            absent_seen += info.get("absent", False)
            if ends[place]:
                assert (info["terminal_observation"] == last[place]).all()
                assert info["agent"] == view.batch.agents[agent]
                assert ("episode" in info) == (not left[row, agent])
                expected = step.truncated[row] and not step.terminated[row, agent]
                assert info["TimeLimit.truncated"] == (expected and not left[row, agent])
                assert ("episode_id" in info) == bool(over[row])
                truncated_seen += info["TimeLimit.truncated"]
    assert absent_seen
    assert truncated_seen or make is TakeTurns


def test_the_return_of_an_agent_covers_its_own_steps():
    view = SB3View(Swarm(1))
    view.seed(0)
    view.reset()
    totals, lengths, told = np.zeros(3), np.zeros(3, int), {}
    for _ in range(15):
        _, reward, done, infos = view.step(np.array([[1.0], [0.1], [0.0]], np.float32))
        for agent in range(3):
            if agent not in told:
                totals[agent] += reward[agent]
                lengths[agent] += 1
                if done[agent]:
                    told[agent] = infos[agent]["episode"]
    for agent in range(3):
        assert told[agent]["l"] == lengths[agent]
        assert told[agent]["r"] == pytest.approx(totals[agent], abs=1e-6)


def test_a_reset_brings_absent_agents_back():
    view = SB3View(Swarm(1))
    view.seed(0)
    view.reset()
    push = np.array([[1.0], [0.0], [0.0]], np.float32)
    while not view.step(push)[2][0]:
        pass
    assert view.step(push)[3][0]["absent"]
    view.reset()
    assert "absent" not in view.step(push)[3][0]


def test_agents_keyed_by_name_share_rows_where_their_spaces_are_equal():
    class Twins(Duet):
        """Both agents have the same two actions."""

        def __init__(self, rows: int) -> None:
            super().__init__(rows)
            self.action_space = spaces.Dict(short=spaces.Discrete(2), long=spaces.Discrete(2))

        def action_masks(self, out: dict) -> None:
            for place, agent in enumerate(self.agents):
                out[agent][...] = self.last[:, [place]] != np.arange(2)

    view = SB3View(Twins(3))
    for step, _, over, last, now, (seen, reward, done, infos) in play_agents(Twins(3), view, 12):
        assert (seen == now).all()
        assert (reward == step.reward.reshape(-1)).all()
        for place in np.flatnonzero(done):
            assert (infos[place]["terminal_observation"] == last[place]).all()
            assert ("episode_id" in infos[place]) == bool(over[place // 2])
    assert view.action_masks().shape == (6, 2)
    with pytest.raises(ValueError, match=r"agents as rows need equal spaces, got leader: Box"):
        SB3View(Convoy(2))
    with pytest.raises(ValueError, match=r"action_space: agents as rows need equal spaces"):
        SB3View(Duet(2))
    assert SB3View(Swarm(2)).action_space == spaces.Box(-1.0, 1.0, (1,), np.float32)


def test_masks_of_agents_are_rows_too():
    view = SB3View(TakeTurns(2))
    view.seed(0)
    view.reset()
    masks = np.stack(view.env_method("action_masks"))
    assert masks.shape == (6, 3)
    assert masks.tolist() == view.episodes.masks().reshape(6, 3).tolist()


def test_make_builds_the_view():
    view = palestra.make(Drift, "sb3", 5, max_episode_steps=3, gain=0.1)
    assert isinstance(view, SB3View)
    assert (view.num_envs, view.batch.horizon, view.batch.gain) == (5, 3, 0.1)
