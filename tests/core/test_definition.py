"""What the author of an environment is told when a definition, a step or a metric is wrong."""

import copy
import pickle

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded

from palestra.batch import BatchEnv, Episodes, Step
from palestra.play import NotFinite
from palestra.registry import resolve
from palestra.rollout import evaluate
from palestra.views.gym import GymView
from palestra.views.sb3 import SB3View
from palestra.views.vector import VectorView

from .toys import Counter, Drift


def zero(observation, **_):
    return np.zeros(len(observation), np.int64)


# --- the arrays of a step ------------------------------------------------------------------------


def test_assigning_to_a_step_writes_into_the_arrays_that_the_core_holds():
    step = Step(3)
    held = step.reward
    step.reward = [1, 2, 3]
    step.reward += 1.0
    assert step.reward is held
    assert held.tolist() == [2.0, 3.0, 4.0]
    step.duration = 0.5
    assert step.duration.tolist() == [0.5, 0.5, 0.5]


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("reward", [1.0, 2.0], ValueError, r"step.reward: got shape \(2,\), allowed \(3,\)"),
        ("reward", np.zeros((3, 1)), ValueError, r"step.reward: got shape \(3, 1\)"),
        ("reward", "x", TypeError, "step.reward: got <U1 values, expected float64"),
        ("reward", None, TypeError, "step.reward: got object values, expected float64"),
        ("terminated", [0, 1, 0], TypeError, "step.terminated: got int64 values, expected bool"),
        ("done", True, AttributeError, "step.done: allowed duration, reward, terminated, trunca"),
    ],
)
def test_a_step_refuses_what_does_not_fit(name, value, error, message):
    with pytest.raises(error, match=message):
        setattr(Step(3), name, value)


def test_a_step_can_be_copied_and_pickled():
    step = Step(2, agents=3)
    step.reward[1, 2] = 7.0
    for twin in (step.copy(), copy.deepcopy(step), pickle.loads(pickle.dumps(step))):
        assert type(twin) is Step
        assert twin.reward.tolist() == step.reward.tolist()
        assert not np.shares_memory(twin.reward, step.reward)
        with pytest.raises(ValueError, match=r"step.truncated: got shape \(3,\)"):
            twin.truncated = [True, False, True]


# --- definitions ---------------------------------------------------------------------------------


class NoSuper(Counter):
    def __init__(self, rows: int) -> None:
        self.rows = rows


class NoSpace(Counter):
    def __init__(self, rows: int) -> None:
        BatchEnv.__init__(self, rows)


class Twins(Counter):
    agents = ("left", "left")


class Named(Counter):
    agents = ["left", "right"]


class NoObserve(Counter):
    observe = None


class ReturnsObservation(Counter):
    def observe(self, rows, streams, out):
        return np.zeros((self.rows, 1), np.float32)


class ReturnsStep(Counter):
    def advance(self, actions, live, streams, step):
        return step


class ReturnsStart(Counter):
    def begin(self, rows, streams, options):
        return 0


class ThreeRows(Counter):
    def __init__(self, rows: int) -> None:
        super().__init__(3)


class EndsRows(Counter):
    """No row is live any more, so none ever ends."""

    def advance(self, actions, live, streams, step):
        live[:] = False


class EndsOneRow(Counter):
    def advance(self, actions, live, streams, step):
        super().advance(actions, live, streams, step)
        live[1] = False


class StopsTheCount(Counter):
    def advance(self, actions, live, streams, step):
        streams.step[:] = 0


@pytest.mark.parametrize("broken", [EndsRows, EndsOneRow, StopsTheCount])
def test_an_environment_that_writes_what_it_may_only_read_is_refused_and_does_not_hang(broken):
    with pytest.raises(RuntimeError, match=f"{broken.__name__}: the environment wrote to live or"):
        evaluate(zero, broken, episodes=12, seed=0, width=4)


def step_a_view(env):
    view = VectorView(env)
    view.reset(seed=0)
    view.step(np.zeros(2, np.int64))


@pytest.mark.parametrize(
    ("broken", "method", "place"),
    [
        (ReturnsObservation, "observe", "out"),
        (ReturnsStep, "advance", "step"),
        (ReturnsStart, "begin", "attributes of its own"),
    ],
)
def test_a_method_that_returns_its_result_is_told_where_to_write_it(broken, method, place):
    said = f"{broken.__name__}.{method}: returned a value, expected None; it writes into {place}"
    with pytest.raises(TypeError, match=said):
        evaluate(zero, broken, episodes=4, seed=0, width=2)
    with pytest.raises(TypeError, match=said):
        step_a_view(broken(2))


def test_an_environment_has_as_many_rows_as_were_asked_for():
    with pytest.raises(ValueError, match="ThreeRows builds an environment of 3 rows, and 4 were"):
        evaluate(zero, ThreeRows, episodes=4, seed=0, width=4)
    with pytest.raises(ValueError, match=r"super\(\).__init__\(rows, ...\)"):
        resolve(ThreeRows).make(1)
    assert resolve(ThreeRows).make(3).rows == 3


def test_a_snapshot_of_another_number_of_rows_or_environment_is_refused():
    two, three, other = Episodes(Drift(2)), Episodes(Drift(3)), Episodes(Drift(2))
    two.reset(0)
    three.reset(0)
    with pytest.raises(ValueError, match=r"snapshot: got .*, expected .*another number of rows"):
        two.restore(three.snapshot())
    state = two.snapshot()
    with pytest.raises(ValueError, match="snapshot: got"):
        other.restore({name: array for name, array in state.items() if name != "ended"})
    other.restore(state)
    assert other.observe().tolist() == two.observe().tolist()


@pytest.mark.parametrize("count", [2**20 + 1, 2**31])
def test_a_width_beyond_any_use_is_refused_at_once(count):
    with pytest.raises(ValueError, match=rf"width: got {count}, allowed at most 1048576"):
        evaluate(zero, Counter, episodes=4, seed=0, width=count)


def test_a_policy_that_returns_no_pair_is_told_so():
    class Bare:
        def predict(self, observation, state=None, episode_start=None, deterministic=True):
            return np.zeros(len(observation), np.int64)

    with pytest.raises(TypeError, match=r"predict returned ndarray, expected the tuple \(actions"):
        evaluate(Bare(), Counter, episodes=4, seed=0, width=2)


@pytest.mark.parametrize(
    ("broken", "error", "message"),
    [
        (NoObserve, TypeError, "NoObserve.observe: got None, expected a method"),
        (NoSuper, TypeError, r"NoSuper.__init__ must call super\(\).__init__\(rows, horizon"),
        (NoSpace, TypeError, "NoSpace.observation_space: got None, expected a gymnasium space"),
        (Twins, ValueError, r"Twins.agents: got \('left', 'left'\), allowed each name once"),
        (Named, TypeError, "Named.agents: got .*, expected a tuple of names"),
    ],
)
def test_an_incomplete_definition_is_named(broken, error, message):
    with pytest.raises(error, match=message):
        Episodes(broken(2))


def test_a_horizon_fits_the_counter_of_steps():
    for steps in (2**32 - 1, 10**400):
        with pytest.raises(ValueError, match="horizon: above 4294967294 steps; allowed None"):
            Counter(1, horizon=steps)


# --- metrics -------------------------------------------------------------------------------------


def measuring(values):
    """A Counter whose metrics are the given ones, or what the given function makes of it."""

    class Measured(Counter):
        def metrics(self):
            return values(self) if callable(values) else values

    return Measured


@pytest.mark.parametrize("name", ["dt", "seed", "episode_id", "return", "_x", "return/a", 3])
def test_a_metric_cannot_take_the_name_of_another_entry(name):
    with pytest.raises(ValueError, match=f"Measured gave the name {name!r}; allowed any"):
        Episodes(measuring({name: np.zeros(2)})(2))


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ([1.0], TypeError, "metrics: Measured gave list, expected a dict of arrays"),
        ({"score": [1.0, 2.0]}, TypeError, r"metrics\['score'\]: Measured gave \[1.0, 2.0\], exp"),
        ({"score": np.array(["a", "b"])}, TypeError, r"metrics\['score'\]"),
        ({"score": np.zeros(3)}, ValueError, r"metrics\['score'\]: .* shape \(3,\), allowed \(2,"),
    ],
)
def test_metrics_are_arrays_with_one_number_a_row(values, error, message):
    with pytest.raises(error, match=message):
        Episodes(measuring(values)(2))


def test_the_names_of_metrics_do_not_change():
    env = measuring(lambda env: {f"m{env.count[0]}": np.zeros(env.rows)})(1)
    view = GymView(env)
    view.reset(seed=0)
    view.step(0)
    view.step(0)
    with pytest.raises(ValueError, match=r"metrics: Measured gave \['m3'\], at first \['m0'\]"):
        view.step(0)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_metric_that_is_not_finite_stops_the_run(value):
    env = measuring(lambda env: {"score": np.where(env.count == 3, value, 0.0)})
    with pytest.raises(NotFinite, match=f"seed 4, episode 0, step 3: metric score is {value}"):
        evaluate(zero, env, episodes=5, width=2, seed=4)


class Scored(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 1.0, True, False, {}


def test_an_entry_of_info_that_never_came_is_a_missing_metric():
    from palestra.gym_batch import GymBatch

    def batch(rows):
        return GymBatch(rows, Scored, metrics=["score"])

    done = evaluate(zero, batch, episodes=3, width=2, seed=0)
    assert np.isnan(done.column("score")).all()


class Rewinds(Counter):
    def advance(self, actions, live, streams, step):
        super().advance(actions, live, streams, step)
        step.duration[live] = -0.5


def test_a_negative_duration_stops_the_run():
    with pytest.raises(ValueError, match=r"Rewinds: seed 0, episode 0, step 1: duration is -0.5, "):
        evaluate(zero, Rewinds, episodes=2, width=1, seed=0)


# --- a refused reset -----------------------------------------------------------------------------


class Strict(Counter):
    """Refuses to start above 9."""

    def begin(self, rows, streams, options) -> None:
        if options is not None and any(o.get("start", 0) > 9 for o in options):
            raise ValueError("start: got more than 9")
        super().begin(rows, streams, options)


def test_after_a_refused_option_the_seed_and_the_next_episode_are_what_they_were():
    view = GymView(Strict(1, length=20))
    view.reset(seed=3)
    view.step(0)
    with pytest.raises(ValueError, match="start"):
        view.reset(seed=8, options={"start": 10, "episode": 40})
    with pytest.raises(ResetNeeded):
        view.step(0)
    _, info = view.reset()
    assert (info["seed"], info["episode_id"]) == (3, 1)


def test_a_refused_option_ends_only_the_rows_that_were_to_begin():
    view = VectorView(Strict(3, length=20), "DISABLED")
    view.reset(seed=3)
    mask = np.array([False, True, False])
    with pytest.raises(ValueError, match="start"):
        view.reset(options={"start": 10, "reset_mask": mask})
    assert view.episodes.ended.tolist() == mask.tolist()
    view.reset(options={"reset_mask": mask})
    observation, *_ = view.step([0, 0, 0])
    assert observation.ravel().tolist() == [1.0, 1.0, 1.0]


def test_a_first_reset_that_is_refused_leaves_nothing_begun():
    view = VectorView(Strict(2))
    with pytest.raises(ValueError, match="start"):
        view.reset(seed=1, options={"start": 10})
    with pytest.raises(ResetNeeded):
        view.step([0, 0])


@pytest.mark.parametrize("options", [[1], "x", 3])
def test_options_are_a_mapping(options):
    for view in (GymView(Counter(1)), VectorView(Counter(2))):
        with pytest.raises(TypeError, match=r"options: got .*, expected a mapping or None"):
            view.reset(options=options)


def test_an_array_without_dimensions_is_no_seed():
    with pytest.raises(TypeError, match=r"seed: got array\(3\), expected an integer"):
        GymView(Counter(1)).reset(seed=np.array(3))


# --- SB3 -----------------------------------------------------------------------------------------


def test_sb3_rows_that_do_not_exist_are_named():
    view = SB3View(Counter(2))
    for ask in (
        lambda: view.get_attr("length", indices=2),
        lambda: view.env_method("stream_name", indices=[0, -3]),
        lambda: view.env_is_wrapped(Counter, indices=[5]),
    ):
        with pytest.raises(IndexError, match=r"indices: got .*, allowed 0 to 1"):
            ask()


def test_a_refused_sb3_seed_does_not_stay():
    view = SB3View(Counter(2))
    with pytest.raises(ValueError, match="seed: got -1"):
        view.seed(-1)
    view.seed(6)
    view.reset()
    assert [info["seed"] for info in view.reset_infos] == [6, 6]


# --- NEXT_STEP in one call -----------------------------------------------------------------------


@pytest.mark.parametrize("toy", [Counter, Drift])
def test_advance_or_begin_is_advance_followed_by_begin(toy):
    one, two = Episodes(toy(5, horizon=4)), Episodes(toy(5, horizon=4))
    for episodes in (one, two):
        episodes.reset(2)
    draw = np.random.default_rng(0)
    space = one.env.action_space
    for _ in range(40):
        actions = np.array([space.sample() for _ in range(5)], space.dtype)
        if draw.random() < 0.2:
            one.ended[1] = two.ended[1] = True
        begun = two.ended.copy()
        expected, count = two.advance(actions, ~begun)
        two.begin(begun)
        step, stepped, changed, ended = one.advance_or_begin(actions)
        assert stepped.tolist() == (~begun).tolist()
        assert changed.tolist() == (begun | two.ended).tolist()
        assert ended == count
        for name in ("reward", "terminated", "truncated", "duration"):
            assert getattr(step, name).tobytes() == getattr(expected, name).tobytes()
        before, after = one.snapshot(), two.snapshot()
        assert all(before[name].tobytes() == after[name].tobytes() for name in after)
