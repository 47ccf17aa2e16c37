from __future__ import annotations

import os
import sys
from collections import OrderedDict
from types import SimpleNamespace

import control
import numpy as np
import pytest
from gymnasium import spaces

from palestra.batch import Episodes
from palestra.onnx_policy import OnnxPolicy
from palestra.policy import (
    AgentPolicies,
    FunctionPolicy,
    LinearPolicy,
    Normalisation,
    NormalisedPolicy,
    Policy,
    RandomPolicy,
    RowFunctionPolicy,
    SharedPolicy,
    StateSpacePolicy,
    takes_masks,
)
from palestra.policy_files import save_policy
from palestra.policy_loading import load_policy, policy_names
from palestra.registry import UnknownName
from palestra.safe_files import MalformedFile, UnsafeFile
from palestra.spaces import ActionCheck
from palestra.store import RunFolder
from palestra.streams import Streams, uniform

from .toys import SINGLE, build

BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)


def env_with(observation_space=None, action_space=None, agents=()):
    return SimpleNamespace(
        observation_space=observation_space or spaces.Box(-9.0, 9.0, (3,), np.float32),
        action_space=action_space or BOX,
        agents=agents,
        rows=4,
    )


def streams_at(seed: int, episodes, step: int = 0) -> Streams:
    streams = Streams("Toy", len(episodes))
    streams.set_seeds([seed] * len(episodes))
    streams.episode[:] = episodes
    streams.step[:] = step
    return streams


def play_random(space, episodes, steps, agents=(), masks=None):
    """Actions of a RandomPolicy, by step, for rows that play the given episodes of seed 3."""
    policy = RandomPolicy(space, agents)
    streams = streams_at(3, episodes)
    policy.begin(np.ones(len(episodes), bool), streams)
    out = []
    for _ in range(steps):
        out.append(policy.predict(np.zeros((len(episodes), 1)), action_masks=masks)[0])
        streams.step += np.uint32(1)
    return out


# --- the random policy ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "space",
    [
        BOX,
        spaces.Box(np.array([0.0, -np.inf, 1.0, -np.inf]), np.array([1.0, np.inf, np.inf, -2.0])),
        spaces.Box(-3, 4, (2, 2), np.int16),
        spaces.Discrete(5, start=-2),
        spaces.MultiDiscrete([3, 1, 4]),
        spaces.MultiBinary(3),
        spaces.Dict({"a": spaces.Discrete(3), "b": BOX}),
        spaces.Tuple([spaces.Discrete(3), BOX]),
    ],
)
def test_random_actions_belong_to_the_space_and_are_a_function_of_episode_and_step(space):
    many = play_random(space, np.arange(64), 5)
    few = play_random(space, [17, 5], 5)

    def pick(tree, row):
        if isinstance(tree, dict):
            return {k: pick(v, row) for k, v in tree.items()}
        if isinstance(tree, tuple):
            return tuple(pick(v, row) for v in tree)
        return tree[row]

    for step in range(5):
        for row in range(64):
            assert space.contains(pick(many[step], row))
        for row, episode in enumerate([17, 5]):
            np.testing.assert_equal(pick(few[step], row), pick(many[step], episode))


def test_random_discrete_action_is_the_floor_of_the_policy_streams_uniform_number():
    streams = streams_at(3, [11], step=7)
    u = uniform(streams.policy[0], np.uint64(11), np.uint32(7), 0)
    policy = RandomPolicy(spaces.Discrete(1000))
    policy.begin(np.ones(1, bool), streams)
    assert policy.predict(np.zeros((1, 1)))[0].tolist() == [int(u * 1000)]


def test_random_discrete_actions_are_uniform_over_what_the_mask_allows():
    masks = np.tile([True, False, True, True, False], (4000, 1))
    (actions,) = play_random(spaces.Discrete(5), np.arange(4000), 1, masks=masks)
    counts = np.bincount(actions, minlength=5)
    assert counts[[1, 4]].sum() == 0
    # chi-square with 2 degrees of freedom: 13.8 is passed with probability 0.001
    assert ((counts[[0, 2, 3]] - 4000 / 3) ** 2 / (4000 / 3)).sum() < 13.8


def test_random_multidiscrete_respects_flat_masks_and_reports_an_empty_one():
    space = spaces.MultiDiscrete([2, 3])
    masks = np.tile([False, True, True, False, True], (50, 1))
    (actions,) = play_random(space, np.arange(50), 1, masks=masks)
    assert set(map(tuple, actions)) == {(1, 0), (1, 2)}
    masks[7, 2:] = False
    with pytest.raises(ValueError, match="row 7 has no legal action"):
        play_random(space, np.arange(50), 1, masks=masks)


def test_random_actions_of_agents_differ_and_respect_each_agents_mask():
    masks = np.ones((32, 2, 4), bool)
    masks[:, 1, :3] = False
    (actions,) = play_random(spaces.Discrete(4), np.arange(32), 1, ("a", "b"), masks)
    assert actions.shape == (32, 2)
    assert (actions[:, 1] == 3).all()
    (free,) = play_random(spaces.Discrete(4), np.arange(32), 1, ("a", "b"))
    assert (free[:, 0] != free[:, 1]).any()


def test_random_policy_says_the_probability_of_its_actions():
    obs, act = np.zeros((2, 1)), np.zeros((2, 2))
    assert RandomPolicy(spaces.Discrete(4)).action_prob(obs, act).tolist() == [0.25, 0.25]
    masks = np.array([[1, 1, 0, 0, 1], [1, 0, 1, 1, 1]], bool)
    policy = RandomPolicy(spaces.MultiDiscrete([2, 3]))
    assert policy.action_prob(obs, act, action_masks=masks).tolist() == [1 / 2, 1 / 3]
    assert RandomPolicy(BOX).action_prob(obs, act).tolist() == [0.25, 0.25]  # density, area 4


def test_random_policy_leaves_global_random_state_alone():
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    RandomPolicy(BOX).predict(np.zeros((3, 1)))
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002


# --- adapters -------------------------------------------------------------------------------------


def test_policies_are_recognised_and_masks_go_to_those_that_name_them():
    assert isinstance(RandomPolicy(BOX), Policy)
    assert takes_masks(RandomPolicy(BOX))
    assert not takes_masks(LinearPolicy(np.eye(2)))
    assert not takes_masks(FunctionPolicy(lambda x: x))
    assert takes_masks(FunctionPolicy(lambda x, action_masks: x))


def test_a_function_of_one_observation_is_told_that_observations_come_in_batches():
    with pytest.raises(ValueError, match="RowFunctionPolicy"):
        FunctionPolicy(lambda x: x[0]).predict(np.zeros((5, 2)))
    rows = np.arange(10.0).reshape(5, 2)
    actions, _ = RowFunctionPolicy(lambda x: x.sum()).predict(rows)
    assert actions.tolist() == [1.0, 5.0, 9.0, 13.0, 17.0]


def test_linear_policy_is_minus_K_x_saturated_at_the_bounds():
    K = np.array([[1.0, 2.0, 0.5], [0.0, -1.0, 0.25]])
    x = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    u, _ = LinearPolicy(K, BOX).predict(x)
    np.testing.assert_allclose(u, np.clip(-x @ K.T, -1, 1), rtol=1e-5, atol=1e-6)
    assert u.dtype == np.float32
    assert (np.abs(u) == 1).any()


def test_linear_policy_gives_the_same_bits_at_any_batch_size():
    g = np.random.default_rng(1)
    K, x = g.normal(size=(3, 17)), g.normal(size=(64, 17))
    policy = LinearPolicy(K)
    whole, _ = policy.predict(x)
    for rows in (1, 2, 7, 33):
        assert np.array_equal(policy.predict(x[:rows])[0], whole[:rows])


def test_state_space_policy_is_the_response_that_python_control_computes():
    system = control.ss([[0.9, 0.1], [-0.2, 0.8]], [[1.0], [0.5]], [[0.3, -0.4]], [[0.2]], 0.1)
    g = np.random.default_rng(2)
    y = g.normal(size=(3, 20))
    policy = load_policy(system, env_with(spaces.Box(-9, 9, (1,)), spaces.Box(-99, 99, (1,))))
    state, got = None, []
    for k in range(20):
        u, state = policy.predict(y[:, k : k + 1], state, np.zeros(3, bool))
        got.append(u[:, 0])
    for row in range(3):
        expected = control.forced_response(system, inputs=y[row]).outputs
        np.testing.assert_allclose(np.array(got)[:, row], expected, rtol=1e-5, atol=1e-6)


def test_state_space_policy_forgets_at_the_start_of_an_episode_in_that_row_only():
    system = control.ss([[0.5]], [[1.0]], [[1.0]], [[0.0]], 1.0)
    policy = StateSpacePolicy(system)
    ones = np.ones((2, 1))
    _, state = policy.predict(ones)
    _, state = policy.predict(ones, state, np.array([False, False]))
    u, state = policy.predict(ones, state, np.array([True, False]))
    assert u.ravel().tolist() == [0.0, 1.5]
    assert state.ravel().tolist() == [1.0, 1.75]


def test_continuous_time_controllers_are_refused_with_the_remedy():
    with pytest.raises(ValueError, match="sample_system"):
        StateSpacePolicy(control.ss([[-1.0]], [[1.0]], [[1.0]], [[0.0]]))


def test_normalisation_is_that_of_vec_normalize():
    g = np.random.default_rng(3)
    x = g.normal(2.0, 3.0, size=(100, 4)).astype(np.float32)
    mean, variance = x.mean(axis=0), x.var(axis=0)
    seen = []
    inner = FunctionPolicy(lambda z: seen.append(z) or z)
    normalisation = Normalisation({"": mean}, {"": variance}, epsilon=1e-8, limit=1.5)
    NormalisedPolicy(inner, normalisation).predict(x)
    (z,) = seen
    assert z.dtype == np.float32
    np.testing.assert_allclose(z, np.clip((x - mean) / x.std(axis=0), -1.5, 1.5), rtol=1e-5)


# --- several agents -------------------------------------------------------------------------------


def test_each_agent_acts_by_its_own_policy_on_its_own_observation():
    observation = np.arange(12.0).reshape(2, 3, 2)
    policies = {a: FunctionPolicy(lambda x, k=k: k * x) for k, a in enumerate("abc")}
    actions, state = AgentPolicies(policies, ("a", "b", "c")).predict(observation)
    assert np.array_equal(actions, observation * np.arange(3)[:, np.newaxis])
    assert set(state) == {"a", "b", "c"}
    keyed = {"a": np.ones((2, 1)), "b": np.ones((2, 5)), "c": np.ones((2, 2))}
    actions, _ = AgentPolicies(policies, ("a", "b", "c")).predict(keyed)
    assert actions["c"].tolist() == [[2.0, 2.0], [2.0, 2.0]]


def test_random_agents_draw_from_streams_of_their_own():
    space = spaces.Discrete(10**6)
    team = AgentPolicies({"a": RandomPolicy(space), "b": RandomPolicy(space)}, ("a", "b"))
    streams = streams_at(1, np.arange(8))
    team.begin(np.ones(8, bool), streams)
    first, _ = team.predict(np.zeros((8, 2, 1)))
    assert (first[:, 0] != first[:, 1]).all()
    streams.step += np.uint32(1)
    second, _ = team.predict(np.zeros((8, 2, 1)))
    assert (first != second).all()
    again = AgentPolicies({"a": RandomPolicy(space), "b": RandomPolicy(space)}, ("a", "b"))
    again.begin(np.ones(2, bool), streams_at(1, [6, 2]))
    assert np.array_equal(again.predict(np.zeros((2, 2, 1)))[0], first[[6, 2]])


def test_a_mapping_must_name_every_agent_and_no_other():
    env = env_with(agents=("left", "right"))
    with pytest.raises(ValueError, match="did you mean 'right'"):
        load_policy({"left": "random", "rigth": "random"}, env)
    with pytest.raises(ValueError, match="right"):
        load_policy({"left": "random"}, env)
    team = load_policy({"left": "random", "right": np.zeros((2, 3))}, env)
    actions, _ = team.predict(np.zeros((4, 2, 3)))
    assert actions.shape == (4, 2, 2)


def test_a_shared_policy_sees_agents_as_rows():
    env = env_with(agents=("left", "right"))
    policy = load_policy(np.array([[1.0, 0.0, 0.0], [0.0, 0.1, 0.0]]), env)
    assert isinstance(policy, SharedPolicy)
    x = np.random.default_rng(0).uniform(-1, 1, (4, 2, 3)).astype(np.float32)
    u, _ = policy.predict(x)
    np.testing.assert_allclose(u[..., 0], -x[..., 0], rtol=1e-6)


def test_a_shared_policy_forgets_the_agents_of_the_rows_that_begin():
    class Count:
        """Acts by the number of its calls since the episode began."""

        def predict(self, observation, state=None, episode_start=None, deterministic=True):
            state = np.zeros(len(observation)) if state is None else state
            state = np.where(episode_start, 1, state + 1)
            return state, state

    shared = SharedPolicy(Count(), ("a", "b"))
    x, state = np.zeros((3, 2, 1)), None
    for start in ([1, 1, 1], [0, 0, 0], [0, 1, 0]):
        counts, state = shared.predict(x, state, np.array(start, bool))
    assert counts.tolist() == [[3, 3], [1, 1], [3, 3]]


# --- references -----------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["random", "Random"])
def test_nothing_on_disk_shadows_a_registered_name(tmp_path, monkeypatch, folder):
    monkeypatch.chdir(tmp_path)
    (tmp_path / folder).mkdir()
    assert isinstance(load_policy(folder, env_with()), RandomPolicy)


@pytest.mark.parametrize("path", ["./random", "random/", ".random", "ran:dom", "sub/random"])
def test_a_path_is_no_registered_name(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((FileNotFoundError, ImportError, UnknownName)):
        load_policy(path, env_with())


@pytest.mark.parametrize("nothing", ["", " "])
def test_an_empty_name_is_refused(nothing):
    with pytest.raises(UnknownName, match=rf"policy: got '{nothing}', allowed a registered name"):
        load_policy(nothing, env_with())


def test_registered_names_and_near_misses():
    assert "random" in policy_names()
    assert isinstance(load_policy("random", env_with()), RandomPolicy)
    with pytest.raises(UnknownName, match="did you mean 'random'"):
        load_policy("randm", env_with())


def test_gain_matrices_are_read_from_csv_npy_and_mat(tmp_path):
    from scipy.io import savemat

    K = np.array([[1.0, 2.0, 3.0], [0.5, -1.0, 1e-3]])
    np.savetxt(tmp_path / "K.csv", K, delimiter=",")
    np.save(tmp_path / "K.npy", K)
    savemat(tmp_path / "K.mat", {"K": K, "other": np.eye(2)})
    for name in ("K.csv", "K.npy", "K.mat"):
        policy = load_policy(str(tmp_path / name), env_with())
        assert isinstance(policy, LinearPolicy)
        assert np.array_equal(policy.gain, K)


@pytest.mark.parametrize("gain", [np.ones((2, 3)) + 0j, [["1", "2", "3"]] * 2, [[None] * 3] * 2])
def test_a_gain_is_made_of_real_numbers(gain):
    with pytest.raises(ValueError, match=r"gain: got .* numbers, allowed real ones"):
        LinearPolicy(gain, BOX)
    with pytest.raises(ValueError, match=r"policy gain: gain: got .* numbers, allowed real ones"):
        load_policy(np.array(gain), env_with())


def test_matrices_of_a_system_are_made_of_real_numbers():
    class System:
        A, B, C, D = (np.ones((1, 1)) for _ in range(4))
        dt = 1.0

    StateSpacePolicy(System)
    System.B = np.array([[1j]])
    with pytest.raises(ValueError, match="system: B: got complex128 numbers, allowed real ones"):
        StateSpacePolicy(System)


def test_gain_matrices_that_do_not_fit_are_refused_with_both_shapes(tmp_path):
    np.savetxt(tmp_path / "K.csv", np.ones((2, 4)), delimiter=",")
    with pytest.raises(ValueError, match=r"takes 4 components.*\(3,\)"):
        load_policy(tmp_path / "K.csv", env_with())
    np.savetxt(tmp_path / "L.csv", np.ones((1, 3)), delimiter=",")
    with pytest.raises(ValueError, match=r"gives 1 actions.* 2 components"):
        load_policy(tmp_path / "L.csv", env_with())
    (tmp_path / "M.csv").write_text("1,2\n3,oops\n")
    with pytest.raises(MalformedFile, match=r"M\.csv"):
        load_policy(tmp_path / "M.csv", env_with())


def test_objects_are_found_in_files_and_modules_and_classes_are_given_the_environment(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n"
        "class WithEnv:\n"
        "    def __init__(self, env): self.env = env\n"
        "    def predict(self, observation, state=None, episode_start=None, deterministic=True):\n"
        "        return np.zeros((len(observation), 2), np.float32), state\n"
        "class Plain(WithEnv):\n"
        "    def __init__(self): pass\n"
        "class Hungry(WithEnv):\n"
        "    def __init__(self, food, drink): pass\n"
        "def make(env): return WithEnv(env)\n"
        "def act(x): return x[:, :2]\n"
    )
    env = env_with()
    assert load_policy(f"{tmp_path}/mine.py:WithEnv", env).env is env
    assert load_policy(f"{tmp_path}/mine.py:make", env).env is env
    assert load_policy(f"{tmp_path}/mine.py:Plain", env).predict(np.ones((2, 3)))[0].shape == (2, 2)
    assert isinstance(load_policy(f"{tmp_path}/mine.py:act", env), FunctionPolicy)
    assert isinstance(load_policy("palestra.policy:RandomPolicy", env), RandomPolicy)
    with pytest.raises(TypeError, match="Hungry needs food, drink"):
        load_policy(f"{tmp_path}/mine.py:Hungry", env)
    with pytest.raises(ImportError, match="did you mean 'WithEnv'"):
        load_policy(f"{tmp_path}/mine.py:WithEnf", env)


def test_missing_files_are_named_with_their_near_misses(tmp_path):
    np.save(tmp_path / "gain.npy", np.ones((2, 3)))
    with pytest.raises(FileNotFoundError, match=r"did you mean 'gain\.npy'"):
        load_policy(str(tmp_path / "gian.npy"), env_with())


def test_a_run_folder_gives_its_best_checkpoint_and_else_its_last(tmp_path):
    def checkpoint(folder, name, value):
        save_policy(LinearPolicy(np.full((2, 3), value), BOX), tmp_path / f"{name}-made")
        files = {p.name: p.read_bytes() for p in (tmp_path / f"{name}-made").iterdir()}
        folder.publish(name, files)

    folder = RunFolder.create_or_resume(tmp_path / "run", {"seed": 1}, schema="test/1")
    with folder.lock():
        with pytest.raises(FileNotFoundError, match="no checkpoint"):
            load_policy(tmp_path / "run", env_with())
        checkpoint(folder, "step-1", 1.0)
        checkpoint(folder, "step-2", 2.0)
        with pytest.warns(UserWarning, match=r"best policy .* is missing .* step-2, is taken"):
            assert load_policy(tmp_path / "run", env_with()).gain[0, 0] == 2.0
        checkpoint(folder, "best-1", 3.0)
        checkpoint(folder, "step-3", 4.0)
        assert load_policy(str(tmp_path / "run"), env_with()).gain[0, 0] == 3.0


def test_files_that_could_run_code_are_refused_by_their_suffix(tmp_path):
    for name in ("p.pkl", "p.pt", "p.pth", "p.npz", "p.joblib"):
        (tmp_path / name).write_bytes(b"x")
        with pytest.raises(UnsafeFile, match="never loaded"):
            load_policy(tmp_path / name, env_with())


def test_policies_that_do_not_fit_the_environment_are_refused():
    class Trained:
        def __init__(self, observation_space, action_space):
            self.observation_space, self.action_space = observation_space, action_space

        def predict(self, observation, state=None, episode_start=None, deterministic=True):
            return observation, state

    env = env_with()
    load_policy(Trained(env.observation_space, env.action_space), env)
    wrong = [
        (spaces.Box(-9.0, 9.0, (4,)), BOX),
        (spaces.Discrete(3), BOX),
        (env.observation_space, spaces.Discrete(2)),
        (env.observation_space, spaces.Box(-2.0, 2.0, (2,))),
        (env.observation_space, spaces.Box(-1.0, 1.0, (3,))),
        (spaces.Dict({"x": BOX}), BOX),
    ]
    for observation_space, action_space in wrong:
        with pytest.raises(ValueError, match="space differs"):
            load_policy(Trained(observation_space, action_space), env)
    goal = OrderedDict(x=BOX, y=spaces.Discrete(2))
    other = OrderedDict(x=BOX, y=spaces.Discrete(3))
    with pytest.raises(ValueError, match="y: the policy has Discrete"):
        load_policy(Trained(spaces.Dict(goal), BOX), env_with(spaces.Dict(other)))


def test_what_is_no_policy_is_refused():
    with pytest.raises(TypeError, match="expected an object with predict"):
        load_policy(7, env_with())


# --- ONNX -----------------------------------------------------------------------------------------


def onnx_linear(weight: np.ndarray) -> bytes:
    """An ONNX model y = x W, written field by field (onnx.proto3 gives the field numbers)."""

    def varint(n: int) -> bytes:
        out = b""
        while n > 127:
            out, n = out + bytes([n & 127 | 128]), n >> 7
        return out + bytes([n])

    def number(field: int, n: int) -> bytes:
        return varint(field << 3) + varint(n)

    def block(field: int, content: bytes | str) -> bytes:
        content = content.encode() if isinstance(content, str) else content
        return varint(field << 3 | 2) + varint(len(content)) + content

    rows, columns = weight.shape
    tensor = number(1, rows) + number(1, columns) + number(2, 1) + block(8, "W")
    tensor += block(9, weight.astype("<f4").tobytes())

    def value(name: str, width: int) -> bytes:
        shape = block(1, block(2, "B")) + block(1, number(1, width))
        return block(1, name) + block(2, block(1, number(1, 1) + block(2, shape)))

    node = block(1, "x") + block(1, "W") + block(2, "y") + block(4, "MatMul")
    graph = block(1, node) + block(2, "g") + block(5, tensor)
    graph += block(11, value("x", rows)) + block(12, value("y", columns))
    return number(1, 8) + block(7, graph) + block(8, number(2, 13))


def test_an_onnx_file_without_onnxruntime_names_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "p.onnx").write_bytes(onnx_linear(np.ones((3, 2))))
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r"pip install 'palestra\[onnx\]'"):
        load_policy(tmp_path / "p.onnx", env_with())


def test_an_onnx_network_acts(tmp_path):
    pytest.importorskip("onnxruntime")
    g = np.random.default_rng(0)
    weight = g.normal(size=(3, 2)).astype(np.float32)
    x = g.normal(size=(40, 3)).astype(np.float32)
    (tmp_path / "p.onnx").write_bytes(onnx_linear(weight))
    u, _ = load_policy(tmp_path / "p.onnx", env_with()).predict(x)
    np.testing.assert_allclose(u, np.clip(x @ weight, -1, 1), rtol=1e-5, atol=1e-6)
    env = env_with(action_space=spaces.Discrete(2, start=5))
    choices, _ = load_policy(tmp_path / "p.onnx", env).predict(x)
    assert np.array_equal(choices, 5 + (x @ weight).argmax(axis=1))
    with pytest.raises(ValueError, match="got observations"):
        OnnxPolicy(onnx_linear(weight), BOX).predict(np.zeros((2, 4)))
    with pytest.raises(MalformedFile, match="not an ONNX model"):
        OnnxPolicy(b"rubbish", BOX)


def test_policies_are_imported_without_torch():
    code = (
        "import sys, palestra.policy_loading, palestra.fast_policy\n"
        "heavy = {'torch', 'stable_baselines3', 'onnx', 'onnxruntime', 'scipy.io'}\n"
        "bad = heavy & set(sys.modules)\n"
        "assert not bad, bad\n"
    )
    assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", code]) == 0


@pytest.mark.parametrize("name", list(SINGLE))
def test_a_random_policy_fits_every_kind_of_space(name):
    env = build(name, 3)
    policy = load_policy("random", env)
    streams = Streams("toy", 3)
    policy.begin(env.everyone, streams)
    actions, _ = policy.predict(Episodes(env).observe_blank())
    ActionCheck(env.action_space, (3,))(actions)


def test_parts_of_a_tuple_space_are_compared():
    env = build("Echo-tuple", 2)
    policy = load_policy("random", env)
    policy.action_space = spaces.Tuple([*env.action_space.spaces[:-1], spaces.Discrete(7)])
    with pytest.raises(ValueError, match=r"space differs from the environment's: 4: the policy"):
        load_policy(policy, env)
