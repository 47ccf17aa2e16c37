"""PettingZoo's two interfaces over one row of a multi-agent environment."""

import copy
import pickle
import random
import warnings

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from pettingzoo.test import api_test, parallel_api_test, parallel_seed_test, seed_test

import palestra
from palestra.batch import Episodes, keyed_by_agents
from palestra.spaces import LegalDiscrete, allocate, put, take
from palestra.views.pettingzoo import AECView, ParallelView

from .playing import SEED, Record, as_arrays, hashed_actions
from .toys import ECHOED, TEAMS, Convoy, Counter, Duet, Echo, Swarm, TakeTurns, build, legal_actions


def state_of(view) -> bytes:
    arrays = view._row.episodes.snapshot().values()
    return b"".join(array.tobytes() for array in arrays)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", TEAMS)
def test_pettingzoos_checkers_pass(name):
    parallel_api_test(ParallelView(build(name, 1)), 100)
    api_test(AECView(build(name, 1)), 100)
    seed_test(lambda: AECView(build(name, 1)), 50)
    parallel_seed_test(lambda: ParallelView(build(name, 1)), 50)


def test_the_turn_taking_game_passes_with_nothing_to_say_about_its_interface():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=r"options: TakeTurns does not know 'options'")
        warnings.filterwarnings("ignore", message="We recommend agents to be named")
        parallel_api_test(ParallelView(TakeTurns(1)), 200)
        api_test(AECView(TakeTurns(1)), 200)


class Tape:
    """What each agent of the raw environment saw and got, step by step, over some episodes."""

    def __init__(self, env, episodes: int) -> None:
        self.env = env
        self.names = list(env.agents)
        self.raw = Episodes(env)
        self.raw.seed(SEED)
        self.left = episodes

    def __iter__(self):
        env, raw = self.env, self.raw
        for _ in range(self.left):
            raw.begin(env.everyone)
            steps = []
            start = self.split(raw.observe(), env.observation_space)
            number = int(raw.streams.episode[0])
            while not raw.ended[0]:
                acting, left = raw.acting()[0].copy(), raw.left[0].copy()
                actions = hashed_actions(
                    env, raw.streams.episode, raw.streams.step + 1, raw.masks()
                )
                step, _ = raw.advance(actions)
                steps.append(
                    {
                        "actions": self.split(actions, env.action_space),
                        "acting": [n for n, a in zip(self.names, acting, strict=True) if a],
                        "playing": [
                            n for n, gone in zip(self.names, left, strict=True) if not gone
                        ],
                        "seen": self.split(raw.observe(), env.observation_space),
                        "reward": dict(zip(self.names, step.reward[0].tolist(), strict=True)),
                        "terminated": dict(
                            zip(self.names, step.terminated[0].tolist(), strict=True)
                        ),
                        "truncated": bool(step.truncated[0]),
                        "over": bool(raw.ended[0]),
                        "metrics": {k: v[0].item() for k, v in env.metrics().items()},
                    }
                )
            yield number, start, steps

    def split(self, tree, space):
        if keyed_by_agents(self.env, space):
            return {name: copy.deepcopy(take(tree[name], 0)) for name in self.names}
        return {n: copy.deepcopy(take(tree, (0, i))) for i, n in enumerate(self.names)}


def same(one, two) -> bool:
    return Record([as_arrays(one)]).bits() == Record([as_arrays(two)]).bits()


@pytest.mark.parametrize("name", TEAMS)
def test_parallel_equals_the_raw_environment_bit_for_bit(name):
    view = ParallelView(build(name, 1))
    for number, start, steps in Tape(build(name, 1), 20):
        seen, infos = view.reset(seed=SEED) if number == 0 else view.reset()
        assert same(seen, start)
        assert all(info["episode_id"] == number for info in infos.values())
        for step in steps:
            playing = step["playing"]
            assert view.agents == playing
            given = {agent: step["actions"][agent] for agent in playing}
            seen, reward, terminated, truncated, infos = view.step(given)
            assert same(seen, {agent: step["seen"][agent] for agent in playing})
            assert reward == {agent: step["reward"][agent] for agent in playing}
            assert terminated == {agent: step["terminated"][agent] for agent in playing}
            assert truncated == dict.fromkeys(playing, step["truncated"])
            for info in infos.values():
                assert ("episode_id" in info) == step["over"]
                if step["over"]:
                    assert step["metrics"].items() <= info.items()
        assert view.agents == []


@pytest.mark.parametrize("name", TEAMS)
def test_turn_by_turn_equals_the_raw_environment_bit_for_bit(name):
    view = AECView(build(name, 1))
    for number, start, steps in Tape(build(name, 1), 20):
        view.reset(seed=SEED) if number == 0 else view.reset()
        assert same({agent: view.observe(agent) for agent in view.agents}, start)
        gained = dict.fromkeys(view.possible_agents, 0.0)
        for step in steps:
            assert view.agents == step["playing"]
            for agent in step["acting"]:
                assert view.agent_selection == agent
                assert view.last()[1] == gained[agent]
                gained[agent] = 0.0
                view.step(step["actions"][agent])
            for agent in step["playing"]:
                gained[agent] += step["reward"][agent]
                assert same(view.observe(agent), step["seen"][agent])
                assert view.rewards[agent] == step["reward"][agent]
                assert view.terminations[agent] == step["terminated"][agent]
                assert view.truncations[agent] == step["truncated"]
                assert ("episode_id" in view.infos[agent]) == step["over"]
            for agent in step["playing"]:  # agents that are over leave with None
                if step["terminated"][agent] or step["over"]:
                    assert view.agent_selection == agent
                    assert view.last()[1] == gained[agent]
                    view.step(None)
        assert view.agents == []


def test_seeds_and_options_choose_the_episode_as_in_the_other_views():
    parallel, turns = ParallelView(TakeTurns(1)), AECView(TakeTurns(1))
    single = Episodes(TakeTurns(1))
    for seed, options in ((4, None), (None, None), (None, {"episode": 9}), (4, {"episode": 1})):
        single.reset(seed, options=None if options is None else [options])
        seen, infos = parallel.reset(seed=seed, options=options)
        turns.reset(seed=seed, options=options)
        expected = int(single.streams.episode[0])
        for agent, place in (("red", 0), ("green", 1), ("blue", 2)):
            assert (seen[agent] == single.observe()[0, place]).all()
            assert (turns.observe(agent) == seen[agent]).all()
            assert infos[agent]["episode_id"] == turns.infos[agent]["episode_id"] == expected


def test_spaces_are_always_the_same_objects_and_one_for_each_agent():
    for view in (ParallelView(TakeTurns(1)), AECView(TakeTurns(1))):
        for space in (view.observation_space, view.action_space):
            assert space("red") is space("red")
            assert space("red") is not space("green")
            assert space("red") == space("green")
        assert isinstance(view.action_space("red"), LegalDiscrete)
    view = ParallelView(Convoy(1))
    assert isinstance(view.action_space("leader"), spaces.Box)
    assert isinstance(view.observation_space("follower"), spaces.Dict)


def test_sampled_actions_are_legal():
    view = ParallelView(TakeTurns(1))
    for episode in range(20):
        view.reset(seed=0) if episode == 0 else view.reset()
        while view.agents:
            view.step({agent: view.action_space(agent).sample() for agent in view.agents})


def illegal(view, agent):
    """Actions that this agent must not take now."""
    space = view.action_space(agent)
    if isinstance(space, spaces.Box):
        wrong = [np.array([np.nan]), np.array([np.inf]), np.array([1.5]), np.zeros(2), "x", None]
    else:
        wrong = [space.n, -1, 1.0, "x", None, np.array([0])]
    if isinstance(space, LegalDiscrete):
        wrong += [int(choice) for choice in np.flatnonzero(~view._row.mask(agent))]
    return wrong


@pytest.mark.parametrize("name", TEAMS)
def test_an_illegal_action_in_parallel_raises_and_changes_nothing(name):
    view = ParallelView(build(name, 1))
    view.reset(seed=0)
    if name == "TakeTurns":
        view.batch.pile[:] = 2
    acting = view._row.acting()
    legal = {agent: view.action_space(agent).sample() for agent in view.agents}
    before = state_of(view)
    for agent in acting:
        for action in illegal(view, agent):
            with pytest.raises((TypeError, ValueError), match=f"action of {agent}"):
                view.step(legal | {agent: action})
            assert state_of(view) == before
            assert view.agents == view.possible_agents
    for actions in ({}, {acting[0]: legal[acting[0]], "nobody": 0}):
        with pytest.raises(ValueError, match="actions: got"):
            view.step(actions)
        assert state_of(view) == before
    view.step(legal)


@pytest.mark.parametrize("name", TEAMS)
def test_an_illegal_action_in_a_turn_raises_and_changes_nothing(name):
    view = AECView(build(name, 1))
    view.reset(seed=0)
    if name == "TakeTurns":
        view.batch.pile[:] = 2
    for agent in view._row.acting():
        before = state_of(view)
        assert view.agent_selection == agent
        for action in illegal(view, agent):
            with pytest.raises((TypeError, ValueError), match=f"action of {agent}"):
                view.step(action)
            assert state_of(view) == before
            assert view.agent_selection == agent
        view.step(view.action_space(agent).sample())


def test_those_who_wait_may_give_any_action_of_their_space():
    view = ParallelView(TakeTurns(1))
    view.reset(seed=0)
    (acting,) = view._row.acting()
    view.step({agent: 0 if agent == acting else 2 for agent in view.agents})
    assert view.batch.held.sum() == 1


def test_actions_of_every_usual_type_are_taken():
    view = ParallelView(Convoy(1))
    view.reset(seed=0)
    for leader, follower in (([0.5], 1), (np.array([0.5]), np.int32(1)), ([-1], np.array(1))):
        view.step({"leader": leader, "follower": follower})


def test_a_step_before_the_reset_and_after_the_end_is_refused():
    for view in (ParallelView(Swarm(1)), AECView(Swarm(1))):
        with pytest.raises(ResetNeeded, match="call reset"):
            view.step({})
    view = ParallelView(Swarm(1, horizon=1))
    view.reset(seed=0)
    view.step({agent: np.zeros(1, np.float32) for agent in view.agents})
    with pytest.raises(ResetNeeded, match="call reset"):
        view.step({})


def test_masks_are_in_the_infos_as_the_spaces_sample_them():
    view = ParallelView(TakeTurns(1))
    _, infos = view.reset(seed=0)
    view.batch.pile[:] = 2
    (acting,) = view._row.acting()
    assert infos[acting]["action_mask"].tolist() == [1, 1, 1]
    assert infos[acting]["action_mask"].dtype == np.int8
    assert view._row.infos(None)[acting]["action_mask"].tolist() == [1, 1, 0]
    assert AECView(Duet(1)).batch.agents == ("short", "long")


class EchoTeam(Echo):
    """Echo for two agents that share one space, whatever its kind."""

    agents = ("first", "second")

    def __init__(self, rows: int, kind: str) -> None:
        super().__init__(rows, horizon=3, kind=kind)
        self.heard = allocate(self.action_space, (rows, 2))

    def begin(self, rows, streams, options) -> None:
        put(self.heard, rows, legal_actions(self.action_space, np.random.default_rng(0).random, ()))

    def advance(self, actions, live, streams, step) -> None:
        put(self.heard, live, take(actions, live))


@pytest.mark.parametrize("kind", ECHOED)
def test_spaces_of_every_kind_round_trip(kind):
    """Issue 15, for agents."""
    parallel, turns = ParallelView(EchoTeam(1, kind)), AECView(EchoTeam(1, kind))
    parallel.reset(seed=0)
    turns.reset(seed=0)
    rng = np.random.default_rng(5)
    for _ in range(2):
        spaces_of = {agent: parallel.action_space(agent) for agent in parallel.agents}
        given = {a: legal_actions(space, rng.random, ()) for a, space in spaces_of.items()}
        seen = parallel.step(given)[0]
        for action in given.values():
            turns.step(action)
        for agent, action in given.items():
            assert same(seen[agent], action)
            assert same(turns.observe(agent), action)
            assert parallel.observation_space(agent).contains(seen[agent])


def test_arrays_that_were_handed_out_never_change():
    view = ParallelView(Swarm(1))
    seen, _ = view.reset(seed=0)
    held, copies = list(seen.values()), [one.copy() for one in seen.values()]
    for _ in range(100):
        if not view.agents:
            view.reset()
        seen = view.step({agent: np.full(1, 0.3, np.float32) for agent in view.agents})[0]
        held += seen.values()
        copies += [one.copy() for one in seen.values()]
    assert all((one == two).all() for one, two in zip(held, copies, strict=True))


@pytest.mark.parametrize("name", TEAMS)
@pytest.mark.parametrize("view_class", [ParallelView, AECView])
def test_a_copy_of_a_running_view_goes_on_like_its_original(name, view_class):
    view = view_class(build(name, 1))
    view.reset(seed=2)
    for twin in (copy.deepcopy(view), pickle.loads(pickle.dumps(view))):
        assert state_of(twin) == state_of(view)
        assert twin.agents == view.agents
        for agent in twin.possible_agents:
            twin.action_space(agent).seed(0)
        if view_class is ParallelView:
            twin.step({agent: twin.action_space(agent).sample() for agent in twin.agents})
        else:
            for agent in list(twin._row.acting()):
                twin.step(twin.action_space(agent).sample())
        assert state_of(twin) != state_of(view)


def test_global_random_state_is_untouched():
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    before = random.getstate(), repr(np.random.get_state())  # noqa: NPY002
    view = ParallelView(TakeTurns(1))
    view.reset(seed=5)
    while view.agents:
        view.step({agent: view.action_space(agent).sample() for agent in view.agents})
    assert (random.getstate(), repr(np.random.get_state())) == before  # noqa: NPY002


def test_pictures_modes_and_wrong_environments():
    class Drawn(Swarm):
        def render(self, row):
            return np.zeros((2, 3, 3), np.uint8)

    for view_class in (ParallelView, AECView):
        view = view_class(Drawn(1), render_mode="rgb_array")
        view.reset(seed=0)
        assert view.render().shape == (2, 3, 3)
        assert view_class(Drawn(1)).render() is None
        view.close()
        with pytest.raises(ValueError, match="render_mode: got 'human'"):
            view_class(Drawn(1), render_mode="human")
        for env in (Counter(1), Swarm(2)):
            with pytest.raises(ValueError, match="allowed 1 row with agents"):
                view_class(env)


def test_an_environment_that_gives_nobody_the_turn_is_told_so():
    class Idle(Swarm):
        def acting(self):
            return np.zeros((1, 3), np.bool_)

    with pytest.raises(RuntimeError, match="Idle gives the turn to no live agent"):
        AECView(Idle(1)).reset(seed=0)


def test_make_builds_both():
    assert isinstance(palestra.make(Swarm, "parallel", max_episode_steps=2), ParallelView)
    view = palestra.make(Swarm, "aec", horizon=7)
    assert isinstance(view, AECView)
    assert view.batch.horizon == 7
