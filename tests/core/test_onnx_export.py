"""Exported policies act alike without palestra, and what cannot be exported says so."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections import OrderedDict

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import palestra
from palestra.batch import BatchEnv
from palestra.fast_policy import random_masks, sample_observations
from palestra.onnx_policy import OnnxPolicy
from palestra.policy import (
    AgentPolicies,
    LinearPolicy,
    Normalisation,
    NormalisedPolicy,
    StateSpacePolicy,
)
from palestra.policy_files import save_policy
from palestra.policy_identity import fingerprint
from palestra.policy_loading import load_policy
from palestra.space_json import space_from_json
from palestra.spaces import leaves

from .toys import Convoy, Corridor, Drift, Duet, Swarm, TakeTurns, TwoLocks

torch = pytest.importorskip("torch")
sb3 = pytest.importorskip("stable_baselines3")
contrib = pytest.importorskip("sb3_contrib")
pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

VECTOR = spaces.Box(-4.0, 4.0, (5,), np.float32)
TABLE = spaces.Box(-np.inf, np.inf, (2, 3), np.float64)
PICTURE = spaces.Box(0, 255, (36, 40, 3), np.uint8)  # channels last, as environments give them
GOAL = spaces.Dict(
    OrderedDict(z=VECTOR, a=TABLE, turn=spaces.Discrete(4), bits=spaces.MultiBinary(3), eye=PICTURE)
)
BOX = spaces.Box(np.array([-2.0, 0.0]), np.array([1.0, 30.0]), dtype=np.float32)
DISCRETE = spaces.Discrete(6)
MULTI = spaces.MultiDiscrete([3, 2, 4])
BITS = spaces.MultiBinary(4)
CNN = {"features_extractor_kwargs": {"features_dim": 24}}


class Noise(BatchEnv):
    """Observations drawn from a space; every action is taken and pays nothing."""

    def __init__(self, rows, observation_space, action_space):
        super().__init__(rows, horizon=20)
        self.observation_space, self.action_space = observation_space, action_space

    def begin(self, rows, streams, options):
        pass

    def advance(self, actions, live, streams, step):
        pass

    def observe(self, rows, streams, out):
        for row in range(self.rows) if rows is None else np.flatnonzero(rows):
            generator = streams.generator(row, "observation")
            drawn = sample_observations(self.observation_space, 1, generator)
            for (_, place), (_, value) in zip(leaves(out), leaves(drawn), strict=True):
                place[row] = value[0]


def drawn(space, count, seed):
    """Observations; on pictures a bright corner, because to a network pure noise looks alike."""
    generator = np.random.default_rng(seed)
    observation = sample_observations(space, count, generator)
    for _, leaf in leaves(observation):
        for row in leaf if leaf.dtype == np.uint8 else ():
            row[generator.integers(24) :, generator.integers(24) :] = generator.integers(
                256, size=3
            )
    return observation


def target(observation_space, action_space):
    def noise(rows):
        return Noise(rows, observation_space, action_space)

    return noise


class Blank(gym.Env):
    def __init__(self, observation_space, action_space):
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {}

    def action_masks(self):
        return np.ones(9, np.bool_)


def algorithm(name, observation_space, action_space, policy="MlpPolicy", **kwargs):
    """An algorithm whose weights are as large as a trained network's, so that actions differ."""
    module = sb3 if hasattr(sb3, name) else contrib
    if name in ("DQN", "QRDQN", "SAC", "TD3", "DDPG", "TQC", "CrossQ"):
        kwargs["buffer_size"] = 10
    env = Blank(observation_space, action_space)
    made = getattr(module, name)(policy, env, device="cpu", seed=2, **kwargs)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in made.policy.parameters():
            if parameter.ndim >= 2:
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(noise * 1.5 / np.sqrt(parameter[0].numel()))
        for key, buffer in made.policy.named_buffers():  # statistics of CrossQ's layers
            if key.endswith(("ra_mean", "ra_var")):
                buffer.copy_(0.5 + torch.rand(buffer.shape, generator=generator))
    return made


def activation(name):
    return {"policy_kwargs": {"activation_fn": getattr(torch.nn, name)}}


CASES = [
    ("PPO", VECTOR, BOX, {}),
    ("PPO", VECTOR, DISCRETE, {"policy_kwargs": {"net_arch": []}}),
    ("PPO", VECTOR, MULTI, {}),
    ("PPO", VECTOR, BITS, {}),
    ("PPO", TABLE, spaces.Box(-1, 1, (2, 2)), {}),
    ("PPO", TABLE, spaces.Box(-3.0, 5.0, (2,), np.float64), {}),
    ("PPO", spaces.Discrete(7), DISCRETE, {}),
    ("PPO", spaces.MultiDiscrete([3, 5, 2]), DISCRETE, {}),
    ("PPO", spaces.MultiBinary(6), DISCRETE, {}),
    ("PPO", GOAL, BOX, {"policy": "MultiInputPolicy"}),
    ("PPO", PICTURE, DISCRETE, {"policy": "CnnPolicy", "policy_kwargs": CNN}),
    ("A2C", VECTOR, BOX, {"use_sde": True}),
    ("A2C", VECTOR, BOX, {"use_sde": True, "policy_kwargs": {"squash_output": True}}),
    ("TRPO", VECTOR, BOX, {}),
    ("MaskablePPO", VECTOR, DISCRETE, {}),
    ("MaskablePPO", VECTOR, MULTI, {}),
    ("MaskablePPO", VECTOR, BITS, {}),
    ("SAC", VECTOR, BOX, {}),
    ("SAC", VECTOR, BOX, {"use_sde": True}),
    ("SAC", VECTOR, spaces.Box(-3.0, 5.0, (2,), np.float64), {}),
    ("SAC", GOAL, BOX, {"policy": "MultiInputPolicy"}),
    ("TQC", VECTOR, BOX, {}),
    ("CrossQ", VECTOR, BOX, {}),
    ("TD3", VECTOR, BOX, {}),
    ("DDPG", VECTOR, BOX, {}),
    ("DQN", VECTOR, DISCRETE, {}),
    ("DQN", PICTURE, DISCRETE, {"policy": "CnnPolicy", "policy_kwargs": CNN}),
    ("QRDQN", VECTOR, DISCRETE, {"policy_kwargs": {"n_quantiles": 9}}),
    ("ARS", VECTOR, BOX, {}),
    ("ARS", VECTOR, DISCRETE, {"policy": "LinearPolicy"}),
]


def case_name(case):
    name, observation_space, action_space, _ = case
    return f"{name}-{type(observation_space).__name__}-{type(action_space).__name__}"


def session(path):
    return onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])


def feeds(observation, masks=None):
    """What a person feeds: names from the documentation, arrays as the environment gives them."""
    if isinstance(observation, dict):
        given = {f"observation.{key}": array for key, array in observation.items()}
    else:
        given = {"observation": observation}
    return given if masks is None else given | {"action_mask": masks}


def assert_same_actions(expected, found, space):
    assert found.shape == expected.shape
    assert found.dtype == space.dtype
    if not isinstance(space, spaces.Box):
        assert np.array_equal(found, expected)
        return
    bounded = space.is_bounded()
    scale = space.high.astype(float) - space.low if bounded else np.maximum(1.0, np.abs(expected))
    step = np.spacing(np.abs(expected).astype(np.float32))
    apart = np.maximum(np.abs(found - expected.astype(float)) - step, 0.0) / scale
    assert apart.mean() <= 1e-6
    assert apart.max() <= 1e-5


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_an_exported_network_takes_the_actions_of_predict(case, tmp_path):
    name, observation_space, action_space, kwargs = case
    trained = algorithm(name, observation_space, action_space, **kwargs)
    path = tmp_path / "policy.onnx"
    report = palestra.export_onnx(trained, target(observation_space, action_space), path)
    assert report.observations >= 1000
    assert report.largest_difference <= (1e-5 if isinstance(action_space, spaces.Box) else 0.0)
    observation = drawn(observation_space, 400, 5)
    masked = name == "MaskablePPO"
    masks = random_masks(action_space, 400, np.random.default_rng(6)) if masked else None
    given = {"action_masks": masks} if masked else {}
    expected, _ = trained.predict(observation, deterministic=True, **given)
    (found,) = session(path).run(["action"], feeds(observation, masks))
    assert_same_actions(expected, found, action_space)
    assert len(np.unique(expected, axis=0)) > 1


@pytest.mark.parametrize(
    "name",
    ["CELU", "ELU", "GELU", "Hardtanh", "Identity", "LeakyReLU", "Mish", "ReLU", "ReLU6", "SELU",
     "SiLU", "Sigmoid", "Softplus", "Softsign", "Tanh"],
)  # fmt: skip
def test_every_activation_that_a_file_may_name_is_exported(name, tmp_path):
    trained = algorithm("PPO", VECTOR, BOX, **activation(name))
    path = tmp_path / "policy.onnx"
    palestra.export_onnx(trained, target(VECTOR, BOX), path)
    x = drawn(VECTOR, 300, 1)
    (found,) = session(path).run(["action"], {"observation": x})
    assert_same_actions(trained.predict(x, deterministic=True)[0], found, BOX)


@pytest.mark.parametrize("name", ["SAC", "TD3"])
def test_a_saturated_actor_stays_inside_the_bounds(name, tmp_path):
    # onnxruntime's tanh is -1.0000001 for some arguments
    space = spaces.Box(-2.0, 2.0, (2,), np.float32)
    trained = algorithm(name, VECTOR, space)
    path = tmp_path / "policy.onnx"
    palestra.export_onnx(trained, target(VECTOR, space), path)
    (found,) = session(path).run(["action"], {"observation": 20.0 * drawn(VECTOR, 20_000, 1)})
    assert found.min() == -2.0
    assert found.max() == 2.0


def test_the_batch_may_have_any_size(tmp_path):
    trained = algorithm("PPO", VECTOR, DISCRETE)
    palestra.export_onnx(trained, target(VECTOR, DISCRETE), tmp_path / "policy.onnx")
    x = drawn(VECTOR, 65, 1)
    run = session(tmp_path / "policy.onnx").run
    (together,) = run(["action"], {"observation": x})
    alone = [run(["action"], {"observation": x[i : i + 1]})[0][0] for i in range(65)]
    assert np.array_equal(together, alone)


def test_a_recurrent_policy_carries_its_memory_in_and_out(tmp_path):
    kwargs = {"lstm_hidden_size": 12, "n_lstm_layers": 2, "net_arch": [8]}
    trained = algorithm("RecurrentPPO", VECTOR, BOX, "MlpLstmPolicy", policy_kwargs=kwargs)
    path = tmp_path / "policy.onnx"
    palestra.export_onnx(trained, target(VECTOR, BOX), path)
    run, generator = session(path).run, np.random.default_rng(3)
    memory = {f"state.{part}": np.zeros((6, 2, 12), np.float32) for part in ("hidden", "cell")}
    state, apart = None, 0.0
    for step in range(40):
        x = sample_observations(VECTOR, 6, generator)
        expected, state = trained.predict(x, state, np.array([step == 0] * 6), deterministic=True)
        action, *after = run(
            ["action", "next_state.hidden", "next_state.cell"], {"observation": x, **memory}
        )
        memory = dict(zip(memory, after, strict=True))
        apart = max(apart, float(np.abs(action - expected).max()))
        np.testing.assert_allclose(memory["state.cell"], state[1].swapaxes(0, 1), atol=1e-5)
    assert apart < 3e-5
    again, _ = trained.predict(x, None, np.ones(6, np.bool_), deterministic=True)
    assert np.abs(again - expected).max() > 1e-2, "the memory does not matter here"


def test_a_recurrent_policy_comes_back_with_its_memory(tmp_path):
    trained = algorithm("RecurrentPPO", VECTOR, BOX, "MlpLstmPolicy")
    path = tmp_path / "policy.onnx"
    palestra.export_onnx(trained, target(VECTOR, BOX), path)
    loaded = load_policy(path, Noise(4, VECTOR, BOX))
    generator = np.random.default_rng(3)
    state = memory = None
    for step in range(12):
        x = sample_observations(VECTOR, 4, generator)
        fresh = np.array([step == 0, step % 3 == 0, step == 5, False])
        expected, state = trained.predict(x, state, fresh, deterministic=True)
        found, memory = loaded.predict(x, memory, fresh)
        np.testing.assert_allclose(found, expected, atol=3e-5)


# --- statistics -----------------------------------------------------------------------------------


def statistics(space):
    generator = np.random.default_rng(9)
    return Normalisation(
        {"": generator.normal(size=space.shape)}, {"": generator.uniform(0.5, 4.0, space.shape)},
        1e-8, 1.5,
    )  # fmt: skip


def test_statistics_are_inside(tmp_path):
    trained = algorithm("SAC", VECTOR, BOX)
    policy = NormalisedPolicy(trained, statistics(VECTOR))
    path = tmp_path / "policy.onnx"
    palestra.export_onnx(policy, target(VECTOR, BOX), path)
    x = drawn(VECTOR, 500, 1)
    (found,) = session(path).run(["action"], {"observation": x})
    mean, variance = policy.normalisation.mean[""], policy.normalisation.variance[""]
    z = np.clip((x - mean) / np.sqrt(variance + 1e-8), -1.5, 1.5).astype(np.float32)
    assert_same_actions(trained.predict(z, deterministic=True)[0], found, BOX)


def test_statistics_of_some_keys_of_a_stored_policy(tmp_path):
    trained = algorithm("PPO", GOAL, BOX, "MultiInputPolicy")
    known = Normalisation({"z": np.full(5, 0.3)}, {"z": np.full(5, 2.0)}, 1e-8, 10.0)
    save_policy(NormalisedPolicy(trained, known), tmp_path / "policy.zip")
    path = tmp_path / "policy.onnx"
    palestra.export_onnx(tmp_path / "policy.zip", target(GOAL, BOX), path)
    x = drawn(GOAL, 100, 1)
    (found,) = session(path).run(["action"], feeds(x))
    z = x | {"z": ((x["z"] - 0.3) / np.sqrt(2.0 + 1e-8)).astype(np.float32)}
    assert_same_actions(trained.predict(z, deterministic=True)[0], found, BOX)


# --- classical controllers ------------------------------------------------------------------------


def test_state_feedback_is_minus_k_x_saturated(tmp_path):
    gain = np.array([[1.0, -2.0, 0.5, 0.0, 3.0], [10.0, 4.0, 0.0, -1.0, 0.0]])
    palestra.export_onnx(gain, target(VECTOR, BOX), tmp_path / "K.onnx")
    x = drawn(VECTOR, 200, 1)
    (u,) = session(tmp_path / "K.onnx").run(["action"], {"observation": x})
    expected = np.clip(-(x.astype(np.float64) @ gain.T), BOX.low, BOX.high)
    np.testing.assert_allclose(u, expected, rtol=1e-6)
    assert u.dtype == np.float32


class System:
    A, B = np.array([[0.9, 0.1], [0.0, 0.8]]), np.array([[0.0, 0.2], [1.0, 0.0]])
    C, D = np.array([[-0.5, 0.3]]), np.array([[0.1, 0.0]])
    dt = 0.1


def test_output_feedback_carries_its_state(tmp_path):
    path = tmp_path / "controller.onnx"
    palestra.export_onnx(System(), Drift, path)
    x, y = np.zeros((3, 2)), np.random.default_rng(0).normal(size=(30, 3, 2)).astype(np.float32)
    state = np.zeros((3, 2))
    for measured in y:
        u, state = session(path).run(
            ["action", "next_state"], {"observation": measured, "state": state}
        )
        expected = np.clip(x @ System.C.T + measured @ System.D.T, -1.0, 1.0)
        x = x @ System.A.T + measured @ System.B.T
        np.testing.assert_allclose(u, expected, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(state, x, rtol=1e-12)
    tables = [
        palestra.evaluate(policy, Drift, episodes=60, seed=4, fast=False).table
        for policy in (System(), path)
    ]
    np.testing.assert_allclose(tables[0].column("return"), tables[1].column("return"), rtol=1e-4)


def test_a_static_controller_has_no_state(tmp_path):
    system = type("Static", (), {
        "A": np.zeros((0, 0)), "B": np.zeros((0, 2)), "C": np.zeros((1, 0)),
        "D": np.array([[0.25, 0.0]]), "dt": 0.1,
    })  # fmt: skip
    report = palestra.export_onnx(StateSpacePolicy(system), Drift, tmp_path / "static.onnx")
    assert set(report.inputs) == {"observation"}
    (u,) = session(tmp_path / "static.onnx").run(
        None, {"observation": np.array([[2.0, 1.0]], np.float32)}
    )
    assert np.array_equal(u, np.array([[0.5]], np.float32))


# --- the round trip -------------------------------------------------------------------------------


def test_an_exported_policy_with_masks_plays_the_same_episodes(tmp_path):
    env = Corridor(1)
    trained = algorithm("MaskablePPO", env.observation_space, env.action_space)
    path = tmp_path / "policy.onnx"
    palestra.export_onnx(trained, Corridor, path)
    tables = [
        palestra.evaluate(policy, Corridor, episodes=200, seed=3).table
        for policy in (trained, path)
    ]
    assert tables[0].equals(tables[1])


def test_a_masked_policy_of_two_dials_over_categories(tmp_path):
    env = TwoLocks(1)
    trained = algorithm("MaskablePPO", env.observation_space, env.action_space)
    path = tmp_path / "policy.onnx"
    report = palestra.export_onnx(trained, TwoLocks, path)
    assert report.inputs == {
        "observation": "tensor(int64) [2]", "action_mask": "tensor(bool) [5]",
    }  # fmt: skip
    tables = [
        palestra.evaluate(policy, TwoLocks, episodes=50, seed=3).table for policy in (trained, path)
    ]
    assert tables[0].equals(tables[1])


def test_the_file_says_what_it_is(tmp_path):
    trained = algorithm("PPO", VECTOR, BOX)
    save_policy(trained, tmp_path / "policy.zip")
    path = tmp_path / "policy.onnx"
    report = palestra.export_onnx(
        tmp_path / "policy.zip", target(VECTOR, BOX), path, name="my policy"
    )
    said = session(path).get_modelmeta().custom_metadata_map
    assert said["palestra.version"] == palestra.__version__
    assert said["palestra.policy"] == "my policy"
    assert said["palestra.environment"]
    assert said["palestra.fingerprint"] == fingerprint(load_policy(trained, Noise(1, VECTOR, BOX)))
    assert space_from_json(json.loads(said["palestra.observation_space"])) == VECTOR
    assert space_from_json(json.loads(said["palestra.action_space"])) == BOX
    assert report.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert fingerprint(load_policy(path, Noise(1, VECTOR, BOX))) == report.sha256


def test_equal_policies_give_equal_bytes(tmp_path):
    contents = set()
    for name in ("a.onnx", "b.onnx"):
        trained = algorithm("PPO", VECTOR, BOX)
        palestra.export_onnx(trained, target(VECTOR, BOX), tmp_path / name)
        contents.add((tmp_path / name).read_bytes())
    assert len(contents) == 1


def test_a_file_for_other_spaces_is_refused(tmp_path):
    trained = algorithm("PPO", VECTOR, BOX)
    path = tmp_path / "policy.onnx"
    palestra.export_onnx(trained, target(VECTOR, BOX), path)
    with pytest.raises(ValueError, match="action space differs"):
        load_policy(path, Noise(2, VECTOR, DISCRETE))
    with pytest.raises(ValueError, match="observation space differs"):
        load_policy(path, Noise(2, TABLE, BOX))
    policy = OnnxPolicy(path.read_bytes(), BOX)
    with pytest.raises(ValueError, match=r"got observation float32 \(2, 4\), allowed"):
        policy.predict(np.zeros((2, 4), np.float32))
    with pytest.raises(ValueError, match=r"got \['observation.x'\], allowed"):
        policy.predict({"x": np.zeros((2, 5), np.float32)})


def test_it_runs_where_palestra_cannot_be_imported(tmp_path):
    trained = algorithm("SAC", GOAL, BOX, "MultiInputPolicy")
    palestra.export_onnx(trained, target(GOAL, BOX), tmp_path / "policy.onnx")
    x = drawn(GOAL, 64, 1)
    np.savez(tmp_path / "x.npz", **x)
    code = (
        "import sys\n"
        "for name in ('palestra', 'torch', 'stable_baselines3', 'onnx', 'gymnasium'):\n"
        "    sys.modules[name] = None\n"
        "import numpy as np, onnxruntime\n"
        "session = onnxruntime.InferenceSession('policy.onnx')\n"
        "x = {f'observation.{key}': array for key, array in np.load('x.npz').items()}\n"
        "np.save('u.npy', session.run(['action'], x)[0])\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=120)
    expected, _ = trained.predict(x, deterministic=True)
    assert_same_actions(expected, np.load(tmp_path / "u.npy"), BOX)


# --- several agents -------------------------------------------------------------------------------


def test_a_shared_policy_is_a_file_for_one_agent(tmp_path):
    env = Swarm(1)
    trained = algorithm("PPO", env.observation_space, env.action_space)
    path = tmp_path / "policy.onnx"
    palestra.export_onnx(trained, Swarm, path)
    x = np.random.default_rng(0).normal(size=(30, 2)).astype(np.float32)
    (found,) = session(path).run(["action"], {"observation": x})
    assert_same_actions(trained.predict(x, deterministic=True)[0], found, env.action_space)
    tables = [
        palestra.evaluate(policy, Swarm, episodes=40, seed=3).table for policy in (trained, path)
    ]
    np.testing.assert_allclose(tables[0].column("return"), tables[1].column("return"), atol=1e-4)


def test_a_team_is_a_file_an_agent(tmp_path):
    both = Convoy(1)
    policies = {
        "leader": LinearPolicy([[0.05]], both.action_space["leader"]),
        "follower": algorithm(
            "PPO",
            both.observation_space["follower"],
            both.action_space["follower"],
            "MultiInputPolicy",
        ),
    }
    with pytest.raises(ValueError, match="name one of leader, follower"):
        palestra.export_onnx(policies, Convoy, tmp_path / "team.onnx")
    with pytest.raises(ValueError, match="did you mean 'leader'"):
        palestra.export_onnx(policies, Convoy, tmp_path / "team.onnx", agent="laeder")
    for agent in policies:
        palestra.export_onnx(policies, Convoy, tmp_path / f"{agent}.onnx", agent=agent)
    files = {agent: tmp_path / f"{agent}.onnx" for agent in policies}
    assert isinstance(load_policy(files, Convoy(2)), AgentPolicies)
    tables = [
        palestra.evaluate(team, Convoy, episodes=40, seed=3).table for team in (policies, files)
    ]
    np.testing.assert_allclose(tables[0].column("return"), tables[1].column("return"), atol=1e-4)


def test_agents_that_share_a_policy_with_masks_play_the_same_episodes(tmp_path):
    env = TakeTurns(1)
    trained = algorithm("MaskablePPO", env.observation_space, env.action_space)
    path = tmp_path / "policy.onnx"
    assert palestra.export_onnx(trained, TakeTurns, path).observations == 510 + 3 * 510
    tables = [
        palestra.evaluate(policy, TakeTurns, episodes=40, seed=3).table
        for policy in (trained, path)
    ]
    assert tables[0].equals(tables[1])


def test_agents_with_masks_of_their_own_play_the_same_episodes(tmp_path):
    env = Duet(1)
    team = {
        agent: algorithm("MaskablePPO", env.observation_space[agent], env.action_space[agent])
        for agent in env.agents
    }
    for agent in team:
        palestra.export_onnx(team, Duet, tmp_path / f"{agent}.onnx", agent=agent)
    files = {agent: tmp_path / f"{agent}.onnx" for agent in team}
    tables = [palestra.evaluate(p, Duet, episodes=40, seed=3).table for p in (team, files)]
    assert tables[0].equals(tables[1])


def test_an_agent_of_a_single_policy_is_refused(tmp_path):
    with pytest.raises(ValueError, match="agent: got 'red', but the policy has no part"):
        palestra.export_onnx(np.ones((1, 2)), Drift, tmp_path / "K.onnx", agent="red")


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ("random", "random numbers"),
        (lambda x: x[:, :1], "a Python function"),
        (type("Mine", (), {"predict": lambda self, x, **_: (x, None)})(), "a Python object"),
    ],
)
def test_what_has_no_graph_is_refused_with_what_has(policy, reason, tmp_path):
    with pytest.raises(TypeError, match=f"cannot be exported: .*{reason}.*What can: networks of"):
        palestra.export_onnx(policy, Drift, tmp_path / "policy.onnx")
    assert not list(tmp_path.iterdir())


def test_parts_of_a_network_that_are_not_known_are_named(tmp_path):
    class Extractor(sb3.common.torch_layers.FlattenExtractor):
        pass

    own = algorithm("PPO", VECTOR, BOX, policy_kwargs={"features_extractor_class": Extractor})
    with pytest.raises(TypeError, match="features come from Extractor"):
        palestra.export_onnx(own, target(VECTOR, BOX), tmp_path / "policy.onnx")
    odd = algorithm("PPO", VECTOR, BOX, **activation("Hardswish"))
    with pytest.raises(TypeError, match="a Hardswish layer"):
        palestra.export_onnx(odd, target(VECTOR, BOX), tmp_path / "policy.onnx")
    palestra.export_onnx(np.ones((1, 2)), Drift, tmp_path / "K.onnx")
    with pytest.raises(TypeError, match="an ONNX file already"):
        palestra.export_onnx(tmp_path / "K.onnx", Drift, tmp_path / "again.onnx")


@pytest.mark.parametrize(
    ("action_space", "change"), [(BOX, 1e-4), (DISCRETE, 1), (BOX, np.nan)], ids=str
)
def test_a_file_that_would_act_otherwise_is_not_written(action_space, change, tmp_path):
    trained = algorithm("PPO", VECTOR, action_space)
    original = trained.predict

    def predict(observation, state=None, episode_start=None, deterministic=False):
        actions, state = original(observation, state, episode_start, deterministic)
        actions = actions.copy()
        actions[-1] = (
            (actions[-1] + change) % 6 if isinstance(change, int) else actions[-1] + change
        )
        return actions, state

    trained.predict = predict
    path = tmp_path / "policy.onnx"
    path.write_bytes(b"an older file")
    with pytest.raises(ValueError, match=r"is not written: .* observation \d*9 of 510, allowed"):
        palestra.export_onnx(trained, target(VECTOR, action_space), path)
    assert path.read_bytes() == b"an older file"
    assert len(list(tmp_path.iterdir())) == 1


def test_without_the_extra_the_error_names_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r"pip install 'palestra\[onnx\]'"):
        palestra.export_onnx(np.ones((1, 2)), Drift, tmp_path / "K.onnx")
