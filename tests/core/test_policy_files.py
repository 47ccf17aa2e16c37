from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections import OrderedDict
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from palestra.policy import LinearPolicy, Normalisation, NormalisedPolicy, StateSpacePolicy
from palestra.policy_files import (
    DESCRIPTION,
    STATISTICS,
    WEIGHTS,
    policy_files,
    read_policy,
    save_policy,
)
from palestra.policy_loading import load_policy
from palestra.safe_files import MalformedFile, UnsafeFile, read_tensors, write_tensors
from palestra.sb3_networks import StoredPolicy
from palestra.sb3_zip import read_sb3_zip, read_torch
from palestra.space_json import space_from_json, space_to_json

torch = pytest.importorskip("torch")
sb3 = pytest.importorskip("stable_baselines3")
contrib = pytest.importorskip("sb3_contrib")

DATA = Path(__file__).parent / "data"
VECTOR = spaces.Box(-4.0, 4.0, (5,), np.float32)
GOAL = spaces.Dict(OrderedDict(z=VECTOR, a=spaces.Box(-1.0, 1.0, (2, 2), np.float32)))
BOX = spaces.Box(np.array([-2.0, 0.0]), np.array([1.0, 3.0]), dtype=np.float32)
DISCRETE = spaces.Discrete(4)
MULTI = spaces.MultiDiscrete([3, 2])
PICTURE = spaces.Box(0, 255, (1, 36, 36), np.uint8)


class Blank(gym.Env):
    """Has the spaces and nothing else; the networks under test are never trained."""

    def __init__(self, observation_space, action_space):
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, False, False, {}

    def action_masks(self):
        return np.ones(4, bool)


def algorithm(name, observation_space, action_space, policy="MlpPolicy", **kwargs):
    """An untrained algorithm whose weights are large enough that actions differ."""
    module = sb3 if hasattr(sb3, name) else contrib
    if name in ("DQN", "QRDQN", "SAC", "TD3", "DDPG", "TQC", "CrossQ"):
        kwargs.setdefault("buffer_size", 10)
    env = Blank(observation_space, action_space)
    made = getattr(module, name)(policy, env, device="cpu", seed=1, **kwargs)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in made.policy.parameters():
            if parameter.ndim == 2:
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(noise / np.sqrt(parameter.shape[1]))
    return made


def observations(space, count=1000, seed=0):
    space.seed(seed)
    batch = [space.sample() for _ in range(count)]
    if isinstance(space, spaces.Dict):
        return {key: np.stack([one[key] for one in batch]) for key in space.spaces}
    stacked = np.stack(batch)
    if stacked.dtype == np.uint8:  # pictures of pure noise look alike to a network: a bright square
        for row, corner in enumerate(np.random.default_rng(seed).integers(24, size=(count, 2))):
            stacked[row, 0, corner[0] :, corner[1] :] = 255
    return stacked


def masks_for(policy, space, count=1000):
    if not policy.takes_masks:
        return {}
    width = int(space.n) if isinstance(space, spaces.Discrete) else int(space.nvec.sum())
    masks = np.random.default_rng(0).random((count, width)) < 0.6
    masks[:, 0] = masks[:, -1] = True
    return {"action_masks": masks}


CASES = [
    ("PPO", VECTOR, BOX, {}),
    ("PPO", VECTOR, DISCRETE, {}),
    ("PPO", VECTOR, MULTI, {}),
    ("PPO", GOAL, BOX, {"policy": "MultiInputPolicy"}),
    ("A2C", VECTOR, BOX, {"use_sde": True}),
    ("A2C", VECTOR, DISCRETE, {"policy_kwargs": {"net_arch": []}}),
    (
        "PPO",
        VECTOR,
        BOX,
        {"policy_kwargs": {"net_arch": {"pi": [16], "vf": [8, 8]}, "activation_fn": "ReLU"}},
    ),
    ("SAC", VECTOR, BOX, {"policy_kwargs": {"net_arch": [32, 16]}}),
    ("SAC", GOAL, BOX, {"policy": "MultiInputPolicy", "policy_kwargs": {"n_critics": 3}}),
    ("SAC", VECTOR, BOX, {"use_sde": True}),
    ("TD3", VECTOR, BOX, {"policy_kwargs": {"net_arch": {"pi": [32], "qf": [16, 16]}}}),
    ("DDPG", VECTOR, BOX, {}),
    ("DQN", VECTOR, DISCRETE, {"policy_kwargs": {"net_arch": [20]}}),
    ("MaskablePPO", VECTOR, DISCRETE, {}),
    ("MaskablePPO", VECTOR, MULTI, {}),
    ("TRPO", VECTOR, BOX, {}),
    ("TQC", VECTOR, BOX, {"policy_kwargs": {"n_quantiles": 7}}),
    ("QRDQN", VECTOR, DISCRETE, {"policy_kwargs": {"n_quantiles": 9}}),
    ("CrossQ", VECTOR, BOX, {}),
    (
        "DQN",
        PICTURE,
        DISCRETE,
        {
            "policy": "CnnPolicy",
            "policy_kwargs": {"features_extractor_kwargs": {"features_dim": 24}},
        },
    ),
    (
        "PPO",
        PICTURE,
        DISCRETE,
        {"policy": "CnnPolicy", "policy_kwargs": {"share_features_extractor": False}},
    ),
]


def made(case):
    name, observation_space, action_space, kwargs = case
    kwargs = {k: dict(v) if isinstance(v, dict) else v for k, v in kwargs.items()}
    if kwargs.get("policy_kwargs", {}).get("activation_fn"):
        kwargs["policy_kwargs"]["activation_fn"] = torch.nn.ReLU
    return algorithm(name, observation_space, action_space, **kwargs)


def ids(case):
    return f"{case[0]}-{type(case[1]).__name__}-{type(case[2]).__name__}"


# --- our own format -------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_a_stored_policy_takes_the_same_actions(case, tmp_path):
    trained = made(case)
    count = 1000 if case[1] is not PICTURE else 50
    x = observations(case[1], count)
    save_policy(trained, tmp_path / "policy")
    stored = read_policy(tmp_path / "policy")
    assert isinstance(stored, StoredPolicy)
    masks = masks_for(stored, case[2], count)
    expected, _ = trained.predict(x, deterministic=True, **masks)
    actions, _ = stored.predict(x, deterministic=True, **masks)
    assert np.array_equal(actions, expected)
    assert len(np.unique(expected, axis=0)) > 1
    assert stored.observation_space == trained.policy.observation_space
    assert stored.action_space == case[2]
    again = policy_files(stored)
    assert again[DESCRIPTION] == (tmp_path / "policy" / DESCRIPTION).read_bytes()
    assert again[WEIGHTS] == (tmp_path / "policy" / WEIGHTS).read_bytes()


def test_every_setting_is_written_so_that_changed_defaults_do_not_matter():
    document = json.loads(policy_files(algorithm("SAC", VECTOR, BOX))[DESCRIPTION])
    assert document["settings"]["net_arch"] == [256, 256]
    assert document["settings"]["activation_fn"] == "ReLU"
    assert document["settings"]["clip_mean"] == 2.0


def test_recurrent_policies_carry_their_memory():
    trained = algorithm(
        "RecurrentPPO", VECTOR, BOX, "MlpLstmPolicy", policy_kwargs={"lstm_hidden_size": 12}
    )
    stored = read_policy(policy_files(trained))
    x = observations(VECTOR, 40).reshape(10, 4, 5)
    state = other = None
    for step in range(10):
        start = np.array([step in (0, 3), step == 0, step == 5, step == 0])
        expected, state = trained.predict(x[step], state, start, deterministic=True)
        actions, other = stored.predict(x[step], other, start, deterministic=True)
        assert np.array_equal(actions, expected)


def test_shared_tensors_are_stored_once():
    trained = algorithm("PPO", PICTURE, DISCRETE, "CnnPolicy")
    files = policy_files(trained)
    document = json.loads(files[DESCRIPTION])
    assert len(document["shared"]) == 16  # two copies of four layers' weight and bias
    size = sum(p.numel() for p in trained.policy.parameters()) * 4
    assert len(files[WEIGHTS]) < size + 5000


def test_a_zip_file_holds_the_same_and_equal_policies_give_equal_bytes(tmp_path):
    trained = algorithm("PPO", VECTOR, BOX)
    save_policy(trained, tmp_path / "a.zip")
    save_policy(trained, tmp_path / "b.zip")
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    x = observations(VECTOR, 20)
    env = Blank(VECTOR, BOX)
    actions, _ = load_policy(tmp_path / "a.zip", env).predict(x)
    assert np.array_equal(actions, trained.predict(x, deterministic=True)[0])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.zip", "b.zip"]
    with pytest.raises(FileExistsError):
        save_policy(trained, tmp_path / "a.zip")


def test_classical_policies_are_stored_too(tmp_path):
    g = np.random.default_rng(0)
    x = g.normal(size=(30, 3))
    linear = LinearPolicy(g.normal(size=(2, 3)), BOX)
    save_policy(linear, tmp_path / "linear")
    again = read_policy(tmp_path / "linear")
    assert np.array_equal(again.predict(x)[0], linear.predict(x)[0])

    class System:
        A, B, C, D = np.diag([0.5, -0.2]), g.normal(size=(2, 3)), np.eye(2), np.zeros((2, 3))
        dt = 0.5

    normalisation = Normalisation({"": np.ones(3)}, {"": np.full(3, 2.0)}, 1e-8, 10.0)
    controller = NormalisedPolicy(StateSpacePolicy(System, BOX), normalisation)
    again = read_policy(policy_files(controller))
    state = other = None
    for _ in range(3):
        expected, state = controller.predict(x, state)
        actions, other = again.predict(x, other)
        assert np.array_equal(actions, expected)


def test_what_cannot_be_stored_without_code_is_refused():
    class Extractor(sb3.common.torch_layers.FlattenExtractor):
        pass

    custom = algorithm("PPO", VECTOR, BOX, policy_kwargs={"features_extractor_class": Extractor})
    with pytest.raises(TypeError, match="features_extractor_class"):
        policy_files(custom)

    class Policy(sb3.common.policies.ActorCriticPolicy):
        pass

    with pytest.raises(TypeError, match="policy class Policy"):
        policy_files(algorithm("PPO", VECTOR, BOX, Policy))
    with pytest.raises(TypeError, match="module:object"):
        policy_files(lambda x: x)


def test_reading_leaves_the_global_generator_of_torch_alone():
    files = policy_files(algorithm("PPO", VECTOR, BOX))
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    read_policy(files)
    assert torch.rand(1) == expected


def test_action_prob_is_the_density_of_the_gaussian_and_the_softmax_of_the_logits():
    from scipy.stats import norm

    x = observations(VECTOR, 6)
    trained = algorithm("PPO", VECTOR, BOX)
    stored = read_policy(policy_files(trained))
    with torch.no_grad():
        gaussian = trained.policy.get_distribution(torch.as_tensor(x)).distribution
    actions = np.full((6, 2), 0.5, np.float32)
    expected = norm.pdf(actions, gaussian.mean.numpy(), gaussian.stddev.numpy()).prod(axis=1)
    np.testing.assert_allclose(stored.action_prob(x, actions), expected, rtol=1e-5)
    masked = read_policy(policy_files(algorithm("MaskablePPO", VECTOR, DISCRETE)))
    masks = np.tile([True, False, True, False], (6, 1))
    probabilities = [
        masked.action_prob(x, np.full(6, action), action_masks=masks) for action in range(4)
    ]
    np.testing.assert_allclose(np.sum(probabilities, axis=0), 1.0, rtol=1e-5)
    assert np.max(probabilities[1]) < 1e-6


# --- normalisation travels with the policy (stable-baselines3#468, #1556) -------------------------


def normalised_algorithm(observation_space, policy="MlpPolicy"):
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    env = VecNormalize(DummyVecEnv([lambda: Blank(observation_space, BOX)]), clip_obs=2.0)
    env.reset()
    for _ in range(50):
        env.step(np.zeros((1, 2), np.float32))
    trained = sb3.PPO(policy, env, device="cpu", seed=1)
    with torch.no_grad():
        trained.policy.action_net.weight.normal_(generator=torch.Generator().manual_seed(0))
    return trained, env


def test_normalisation_travels_with_the_policy_into_a_fresh_process(tmp_path):
    trained, env = normalised_algorithm(VECTOR)
    x = observations(VECTOR, 1000, seed=4)
    expected, _ = trained.predict(env.normalize_obs(x), deterministic=True)
    plain, _ = trained.predict(x, deterministic=True)
    assert not np.array_equal(plain, expected)
    save_policy(trained, tmp_path / "policy")
    np.save(tmp_path / "x.npy", x)
    code = (
        "import sys, numpy as np\n"
        "from palestra.policy_files import read_policy\n"
        "folder = sys.argv[1]\n"
        "x = np.load(folder + '/x.npy')\n"
        "policy = read_policy(folder + '/policy')\n"
        "first, _ = policy.predict(x)\n"
        "second, _ = policy.predict(x)\n"
        "assert np.array_equal(first, second), 'the statistics moved'\n"
        "np.save(folder + '/actions.npy', first)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert np.array_equal(np.load(tmp_path / "actions.npy"), expected)


def test_statistics_stay_as_they_were_when_the_policy_was_saved():
    trained, env = normalised_algorithm(VECTOR)
    x = observations(VECTOR, 10)
    stored = read_policy(policy_files(trained))
    held = load_policy(trained, Blank(VECTOR, BOX))
    before, _ = stored.predict(x)
    assert np.array_equal(held.predict(x)[0], before)
    for _ in range(20):
        env.step(np.zeros((1, 2), np.float32))
    assert np.array_equal(stored.predict(x)[0], before)
    assert np.array_equal(held.predict(x)[0], before)


def test_normalisation_of_a_dict_keeps_its_keys():
    trained, env = normalised_algorithm(GOAL, "MultiInputPolicy")
    x = observations(GOAL, 100)
    expected, _ = trained.predict(env.normalize_obs(x), deterministic=True)
    files = policy_files(trained)
    assert set(read_tensors(files[STATISTICS], "s")) == {
        "mean/z", "mean/a", "variance/z", "variance/a"
    }  # fmt: skip
    assert np.array_equal(read_policy(files).predict(x)[0], expected)


# --- the golden file ------------------------------------------------------------------------------


def test_the_first_golden_file_loads_for_ever():
    """Written once by `python -m tests.core.golden_policy`; never to be replaced."""
    stored = read_policy(DATA / "policy-v1.zip")
    expected = np.load(DATA / "policy-v1-actions.npy")
    x = np.linspace(-3, 3, 24).reshape(8, 3).astype(np.float32)
    actions, _ = stored.predict(x)
    np.testing.assert_allclose(actions, expected, atol=1e-6)


def test_a_newer_schema_is_refused_by_its_version():
    files = dict(policy_files(LinearPolicy(np.eye(2))))
    document = json.loads(files[DESCRIPTION])
    files[DESCRIPTION] = json.dumps({**document, "schema": 2}).encode()
    with pytest.raises(MalformedFile, match=r"schema 2; palestra .* reads schema 1 to 1"):
        read_policy(files)


# --- spaces ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "space",
    [
        VECTOR,
        BOX,
        GOAL,
        MULTI,
        spaces.Box(-np.inf, np.inf, (2, 3)),
        spaces.Box(np.array([-np.inf, 0.1]), np.array([0.0, np.inf]), dtype=np.float64),
        PICTURE,
        spaces.Box(-(2**60), 2**60 + 1, (2,), np.int64),
        spaces.Discrete(3, start=-1),
        spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[0, 1], [2, 3]]),
        spaces.MultiBinary((2, 3)),
        spaces.Tuple([DISCRETE, spaces.Dict({"k": VECTOR})]),
    ],
)
def test_spaces_survive_json_bit_for_bit(space):
    text = json.dumps(space_to_json(space), allow_nan=False)
    again = space_from_json(json.loads(text))
    assert again == space
    assert again.dtype == space.dtype
    if isinstance(space, spaces.Dict):
        assert list(again.spaces) == list(space.spaces)


@pytest.mark.parametrize(
    "value",
    [
        {"type": "Box", "shape": [10**12], "dtype": "float32", "low": 0, "high": 1},
        {"type": "Box", "shape": [2], "dtype": "object", "low": 0, "high": 1},
        {"type": "Box", "shape": [2], "dtype": "float32", "low": [0, 0, 0], "high": 1},
        {"type": "Box", "shape": [2], "dtype": "float32", "low": 2, "high": 1},
        {"type": "Box", "shape": [-1], "dtype": "float32", "low": 0, "high": 1},
        {"type": "Box", "shape": [2], "dtype": "float32", "low": "nan", "high": 1},
        {"type": "Discrete", "n": 0, "start": 0},
        {"type": "Discrete", "n": 2.5, "start": 0},
        {"type": "Discrete", "n": 2},
        {"type": "Discrete", "n": 2, "start": 0, "extra": 1},
        {"type": "MultiDiscrete", "nvec": [2.0], "start": [0]},
        {"type": "Text", "max_length": 3},
        {"type": "Dict", "spaces": [["a"]]},
        {"type": "Dict", "spaces": [["a", {"type": "Discrete", "n": 0, "start": 0}]]},
        ["Box"],
        None,
    ],
)
def test_broken_spaces_are_refused(value):
    with pytest.raises(MalformedFile):
        space_from_json(value)


# --- Stable-Baselines3's zips ---------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_the_safe_reader_takes_the_same_actions_as_sb3s_own_load(case, tmp_path):
    name, observation_space, action_space, _ = case
    trained = made(case)
    trained.save(tmp_path / "model.zip")
    loaded = type(trained).load(tmp_path / "model.zip", device="cpu")
    hint = "DDPG" if name == "DDPG" else None  # a DDPG is a TD3 with one critic
    safe = read_sb3_zip(tmp_path / "model.zip", (observation_space, action_space), algorithm=hint)
    count = 1000 if observation_space is not PICTURE else 50
    x = observations(observation_space, count)
    masks = masks_for(safe, action_space, count)
    expected, _ = loaded.predict(x, deterministic=True, **masks)
    actions, _ = safe.predict(x, deterministic=True, **masks)
    assert np.array_equal(actions, expected)
    if name not in ("A2C", "TRPO"):  # named like PPO's, tensor for tensor
        assert safe.algorithm == name


def test_recurrent_zips_are_read_safely(tmp_path):
    for kwargs in (
        {},
        {"enable_critic_lstm": False},
        {"shared_lstm": True, "enable_critic_lstm": False, "n_lstm_layers": 2},
    ):
        trained = algorithm(
            "RecurrentPPO",
            VECTOR,
            BOX,
            "MlpLstmPolicy",
            policy_kwargs={"lstm_hidden_size": 8, **kwargs},
        )
        path = tmp_path / f"{len(kwargs)}.zip"
        trained.save(path)
        x = observations(VECTOR, 20)
        safe = load_policy(path, Blank(VECTOR, BOX))
        assert np.array_equal(safe.predict(x)[0], trained.predict(x, deterministic=True)[0])


def test_settings_that_the_file_hides_can_be_given(tmp_path):
    trained = algorithm(
        "PPO", VECTOR, BOX, policy_kwargs={"activation_fn": torch.nn.ELU, "net_arch": [12]}
    )
    trained.save(tmp_path / "model.zip")
    x = observations(VECTOR, 100)
    expected, _ = trained.predict(x, deterministic=True)
    found = read_sb3_zip(tmp_path / "model.zip", (VECTOR, BOX))
    assert np.array_equal(found.predict(x)[0], expected)
    other = read_sb3_zip(
        tmp_path / "model.zip", (VECTOR, BOX), policy_kwargs={"activation_fn": torch.nn.ReLU}
    )
    assert not np.array_equal(other.predict(x)[0], expected)


def test_separate_extractors_are_recognised_where_the_settings_are_hidden(tmp_path):
    trained = made(CASES[-1])
    trained.save(tmp_path / "model.zip")
    with zipfile.ZipFile(tmp_path / "model.zip") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["data"] = json.dumps({**json.loads(members["data"]), "policy_kwargs": {}})
    with zipfile.ZipFile(tmp_path / "bare.zip", "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    x = observations(PICTURE, 30)
    safe = read_sb3_zip(tmp_path / "bare.zip", (PICTURE, DISCRETE))
    assert np.array_equal(safe.predict(x)[0], trained.predict(x, deterministic=True)[0])


def test_layers_larger_than_the_tensors_are_refused_before_they_are_made():
    for layers in ([64, 10**6], [10**7, 10**7], [64, 65]):
        with pytest.raises(MalformedFile, match="describes a layer"):
            read_policy(damaged(set_in("settings", "net_arch", {"pi": layers, "vf": [64]})))
    with pytest.raises(MalformedFile, match="describes a layer"):
        read_policy(damaged(set_in("observation_space", "shape", [2**20])))


def test_a_zip_that_does_not_fit_the_environment_is_refused(tmp_path):
    algorithm("PPO", VECTOR, BOX).save(tmp_path / "model.zip")
    narrow = spaces.Box(-1.0, 1.0, (4,), np.float32)
    with pytest.raises(ValueError, match=r"observation space .* has a Box of shape \(5,\), the e"):
        read_sb3_zip(tmp_path / "model.zip", (narrow, BOX))
    with pytest.raises(ValueError, match=r"action space .* a Box of shape \(2,\), .*\(3,\)"):
        read_sb3_zip(tmp_path / "model.zip", (VECTOR, spaces.Box(-1, 1, (3,))))
    with pytest.raises(ValueError, match=r"action space .* a Box of shape \(2,\), .*Discrete\(4\)"):
        read_sb3_zip(tmp_path / "model.zip", (VECTOR, DISCRETE))
    algorithm("PPO", VECTOR, DISCRETE).save(tmp_path / "choices.zip")
    with pytest.raises(ValueError, match=r"has Discrete\(4\), the environment Discrete\(5\)"):
        read_sb3_zip(tmp_path / "choices.zip", (VECTOR, spaces.Discrete(5)))


def test_a_zip_that_does_not_say_its_spaces_is_held_against_its_tensors(tmp_path):
    algorithm("PPO", VECTOR, BOX).save(tmp_path / "model.zip")
    with zipfile.ZipFile(tmp_path / "model.zip") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    data = json.loads(members["data"])
    data["observation_space"] = data["action_space"] = None
    members["data"] = json.dumps(data).encode()
    with zipfile.ZipFile(tmp_path / "silent.zip", "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    narrow = spaces.Box(-1.0, 1.0, (4,), np.float32)
    with pytest.raises(MalformedFile, match=r"\(64, 5\), expected float32 \(64, 4\)"):
        read_sb3_zip(tmp_path / "silent.zip", (narrow, BOX))
    with pytest.raises(MalformedFile, match=r"float32 \(3,\)"):
        read_sb3_zip(tmp_path / "silent.zip", (VECTOR, spaces.Box(-1, 1, (3,))))


# --- damaged descriptions -------------------------------------------------------------------------


KINDS = {
    "network": lambda: algorithm("PPO", VECTOR, BOX),
    "gain": lambda: LinearPolicy(np.ones((2, 5)), BOX),
    "normalised": lambda: NormalisedPolicy(LinearPolicy(np.ones((2, 5)), BOX), STATISTICS_OF_FIVE),
}
STATISTICS_OF_FIVE = Normalisation({"": np.zeros(5)}, {"": np.ones(5)}, 1e-8, 10.0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", ["", "normalisation"])
def test_a_key_that_the_schema_does_not_have_is_refused(kind, place):
    files = dict(policy_files(KINDS[kind]()))
    document = json.loads(files[DESCRIPTION])
    table = document[place] if place else document
    if table is None:
        pytest.skip("no statistics")
    table["entry_point"] = "os:system"
    files[DESCRIPTION] = json.dumps(document).encode()
    with pytest.raises(MalformedFile, match="unknown key 'entry_point', allowed "):
        read_policy(files)


def test_a_key_of_another_kind_is_refused():
    files = dict(policy_files(LinearPolicy(np.ones((2, 5)), BOX)))
    document = json.loads(files[DESCRIPTION])
    files[DESCRIPTION] = json.dumps({**document, "dt": 0.1}).encode()
    with pytest.raises(MalformedFile, match="unknown key 'dt', allowed action_space, format"):
        read_policy(files)


def damaged(change):
    files = dict(policy_files(algorithm("PPO", VECTOR, BOX)))
    document = json.loads(files[DESCRIPTION])
    change(document, files)
    files.setdefault(DESCRIPTION, json.dumps(document).encode())
    if files[DESCRIPTION] is not None:
        files[DESCRIPTION] = json.dumps(document).encode()
    return files


def set_in(*path):
    *places, value = path

    def change(document, files):
        for place in places[:-1]:
            document = document[place]
        document[places[-1]] = value

    return change


def with_weights(edit):
    def change(document, files):
        tensors = read_tensors(files[WEIGHTS], "w")
        edit(tensors)
        files[WEIGHTS] = write_tensors(tensors, "w")

    return change


@pytest.mark.parametrize(
    "change",
    [
        set_in("format", "other"),
        set_in("schema", "1"),
        set_in("schema", True),
        set_in("schema", 0),
        set_in("kind", "os.system"),
        set_in("kind", []),
        set_in("algorithm", "os"),
        set_in("algorithm", ["PPO"]),
        set_in("policy", "Policy"),
        set_in("settings", []),
        set_in("settings", "activation_fn", "Module"),
        set_in("settings", "activation_fn", "torch.nn.Tanh"),
        set_in("settings", "activation_fn", []),
        set_in("settings", "features_extractor_class", "BaseFeaturesExtractor"),
        set_in("settings", "features_extractor_class", "NatureCNN"),
        set_in("settings", "optimizer_class", "Adam"),
        set_in("settings", "net_arch", {"pi": [64, -64], "vf": [64, 64]}),
        set_in("settings", "net_arch", {"pi": [64, True], "vf": [64, 64]}),
        set_in("settings", "net_arch", {"pi": [64] * 1000, "vf": [64, 64]}),
        set_in("settings", "use_sde", 1),
        set_in("observation_space", None),
        set_in("observation_space", {"type": []}),
        set_in("action_space", {"type": "Discrete", "n": 2**40, "start": 0}),
        set_in("shared", {"a": "b"}),
        set_in("shared", {"a": []}),
        set_in("normalisation", {"keys": [""], "epsilon": 1e-8, "limit": 10.0}),
        lambda document, files: document.pop("settings"),
        lambda document, files: document.pop("shared"),
        lambda document, files: files.pop(WEIGHTS),
        with_weights(lambda t: t.pop("action_net.bias")),
        with_weights(lambda t: t.update(extra=np.zeros(1))),
        with_weights(lambda t: t.update({"action_net.bias": np.zeros(3, np.float32)})),
        with_weights(lambda t: t.update({"action_net.bias": np.zeros(2, np.float64)})),
    ],
)
def test_damaged_policies_are_malformed(change):
    with pytest.raises(MalformedFile):
        read_policy(damaged(change))


def test_statistics_must_be_variances():
    normalisation = Normalisation({"": np.zeros(2)}, {"": np.array([1.0, -1.0])}, 1e-8, 10.0)
    with pytest.raises(MalformedFile, match="statistics"):
        read_policy(policy_files(LinearPolicy(np.eye(2)), normalisation))


def test_weights_that_are_not_finite_are_not_written_either():
    with pytest.raises(ValueError, match="NaN"):
        write_tensors({"w": np.array([np.nan])}, "w")
    with pytest.raises(UnsafeFile, match="never unpickled"):
        read_torch(b"\x80\x04.", "policy.pth")
