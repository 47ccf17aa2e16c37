from __future__ import annotations

from collections import OrderedDict

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from palestra.fast_policy import FastPolicy, TorchFastPolicy, fast_policy
from palestra.policy import LinearPolicy, Normalisation, NormalisedPolicy, SharedPolicy
from palestra.policy_files import policy_files, read_policy

torch = pytest.importorskip("torch")
sb3 = pytest.importorskip("stable_baselines3")
contrib = pytest.importorskip("sb3_contrib")

VECTOR = spaces.Box(-4.0, 4.0, (5,), np.float32)
TABLE = spaces.Box(-np.inf, np.inf, (2, 3), np.float32)
GOAL = spaces.Dict(OrderedDict(z=VECTOR, a=TABLE))
BOX = spaces.Box(np.array([-2.0, 0.0]), np.array([1.0, 30.0]), dtype=np.float32)
DISCRETE = spaces.Discrete(6)
MULTI = spaces.MultiDiscrete([3, 2, 4])


class Blank(gym.Env):
    def __init__(self, observation_space, action_space):
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {}


def algorithm(name, observation_space, action_space, policy="MlpPolicy", **kwargs):
    module = sb3 if hasattr(sb3, name) else contrib
    if name in ("DQN", "QRDQN", "SAC", "TD3", "DDPG", "TQC"):
        kwargs["buffer_size"] = 10
    env = Blank(observation_space, action_space)
    made = getattr(module, name)(policy, env, device="cpu", seed=2, **kwargs)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in made.policy.parameters():
            if parameter.ndim == 2:  # as large as a trained network's, so that actions differ
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(noise * 1.5 / np.sqrt(parameter.shape[1]))
    return made


TAKEN = [
    ("PPO", VECTOR, BOX, {}),
    ("PPO", VECTOR, DISCRETE, {"policy_kwargs": {"net_arch": [16]}}),
    ("PPO", VECTOR, MULTI, {"policy_kwargs": {"net_arch": []}}),
    ("PPO", TABLE, spaces.Box(-1, 1, (2, 2)), {}),
    ("PPO", GOAL, BOX, {"policy": "MultiInputPolicy"}),
    ("A2C", VECTOR, BOX, {}),
    ("TRPO", VECTOR, BOX, {}),
    ("MaskablePPO", VECTOR, DISCRETE, {}),
    ("MaskablePPO", VECTOR, MULTI, {}),
    ("SAC", VECTOR, BOX, {}),
    ("SAC", GOAL, BOX, {"policy": "MultiInputPolicy"}),
    ("TQC", VECTOR, BOX, {}),
    ("TD3", VECTOR, BOX, {}),
    ("DDPG", VECTOR, BOX, {}),
    ("DQN", VECTOR, DISCRETE, {}),
]


def draw(space, count, seed=11):
    generator = np.random.default_rng(seed)
    if isinstance(space, spaces.Dict):
        return {key: draw(part, count, seed) for key, part in space.spaces.items()}
    return generator.standard_normal((count, *space.shape)).astype(np.float32)


def half_width(space):
    return np.maximum(1.0, (space.high - space.low) / 2)


@pytest.mark.parametrize("case", TAKEN, ids=lambda case: f"{case[0]}-{type(case[2]).__name__}")
def test_fast_actions_are_those_of_predict_on_observations_not_compared_before(case):
    name, observation_space, action_space, kwargs = case
    trained = algorithm(name, observation_space, action_space, **kwargs)
    fast, report = fast_policy(trained, 64)
    assert report.taken, report
    assert report.observations == 1000
    assert isinstance(fast, FastPolicy)
    x = draw(observation_space, 1000)
    masks = {}
    if name == "MaskablePPO":
        width = int(action_space.n) if action_space is DISCRETE else int(action_space.nvec.sum())
        masks["action_masks"] = np.random.default_rng(0).random((1000, width)) < 0.5
        masks["action_masks"][:, [0, 3, 5]] = True
    expected, _ = trained.predict(x, deterministic=True, **masks)
    actions, _ = fast.predict(x, **masks)
    assert actions.shape == expected.shape
    assert actions.dtype == expected.dtype
    assert len(np.unique(expected, axis=0)) > 2
    if isinstance(action_space, spaces.Box):
        assert (np.abs(actions - expected) / half_width(action_space)).max() <= 1e-6
    else:
        assert np.array_equal(actions, expected)
    if masks and action_space is DISCRETE:
        assert masks["action_masks"][np.arange(1000), actions].all()


def test_statistics_are_part_of_the_fast_path():
    trained = algorithm("PPO", VECTOR, BOX)
    normalisation = Normalisation(
        {"": np.array([1.0, -2.0, 0.0, 3.0, 0.1])}, {"": np.array([4.0, 0.1, 1.0, 2.0, 9.0])},
        epsilon=1e-8, limit=1.2,
    )  # fmt: skip
    x = draw(VECTOR, 500)
    for policy in (
        NormalisedPolicy(trained, normalisation),
        read_policy(policy_files(trained, normalisation)),
    ):
        fast, report = fast_policy(policy, 64)
        assert report.taken, report
        expected, _ = policy.predict(x)
        assert np.abs(fast.predict(x)[0] - expected).max() <= 1e-5  # the second action spans 30
        assert not np.allclose(expected, trained.predict(x, deterministic=True)[0])


def test_statistics_of_some_keys_of_a_dict():
    trained = algorithm("PPO", GOAL, BOX, "MultiInputPolicy")
    normalisation = Normalisation({"a": np.ones((2, 3))}, {"a": np.full((2, 3), 4.0)}, 1e-8, 5.0)
    fast, report = fast_policy(NormalisedPolicy(trained, normalisation), 16)
    assert report.taken, report
    x = draw(GOAL, 40)
    expected, _ = trained.predict({"z": x["z"], "a": (x["a"] - 1) / 2}, deterministic=True)
    np.testing.assert_allclose(fast.predict(x)[0], expected, atol=2e-5)


def refused(reason, name, *args, **kwargs):
    return pytest.param(reason, (name, *args), kwargs, id=f"{name}-{reason}")


@pytest.mark.parametrize(
    ("reason", "arguments", "kwargs"),
    [
        refused("ELU", "PPO", VECTOR, BOX, policy_kwargs={"activation_fn": torch.nn.ELU}),
        refused(
            "squashes", "PPO", VECTOR, BOX, use_sde=True, policy_kwargs={"squash_output": True}
        ),
        refused("Sequential", "SAC", VECTOR, BOX, use_sde=True),
        refused("NatureCNN", "PPO", spaces.Box(0, 255, (1, 36, 36), np.uint8), BOX, "CnnPolicy"),
        refused("picture", "PPO", spaces.Box(0, 255, (1, 36, 36), np.uint8), BOX),
        refused("Discrete, not Box", "PPO", spaces.Discrete(3), BOX),
        refused("action space is MultiBinary", "PPO", VECTOR, spaces.MultiBinary(3)),
        refused("no fast path", "QRDQN", VECTOR, DISCRETE),
        refused("recurrent", "RecurrentPPO", VECTOR, BOX, "MlpLstmPolicy"),
    ],
)
def test_policies_of_another_kind_fall_back_with_the_reason(reason, arguments, kwargs):
    fast, report = fast_policy(algorithm(*arguments, **kwargs), 8)
    assert fast is None
    assert not report.taken
    assert reason in report.reason
    assert report.largest_difference is None


def test_policies_without_a_network_fall_back():
    fast, report = fast_policy(LinearPolicy(np.eye(2)), 8)
    assert fast is None
    assert "LinearPolicy is not a network" in report.reason


@pytest.mark.parametrize("action_space", [BOX, DISCRETE])
def test_a_predict_that_does_something_else_is_found_out(action_space):
    trained = algorithm("PPO", VECTOR, action_space)
    plain = trained.predict

    def predict(observation, state=None, episode_start=None, deterministic=False):
        actions, state = plain(observation, state, episode_start, deterministic)
        wrong = observation[:, 0] > 3.98  # a few of a thousand
        if action_space is BOX:
            return actions + 1e-4 * wrong[:, np.newaxis], state
        return np.where(wrong, (actions + 1) % 6, actions), state

    trained.predict = predict
    fast, report = fast_policy(trained, 64)
    assert fast is None
    assert "differ from predict" in report.reason
    assert report.largest_difference > 0


def test_given_observations_decide():
    trained = algorithm("PPO", VECTOR, BOX)
    plain = trained.predict
    trained.predict = lambda x, **kwargs: (plain(x, **kwargs)[0] + (x[:, :1] > 50), None)
    assert fast_policy(trained, 8)[1].taken
    assert not fast_policy(trained, 8, np.full((3, 5), 60.0, np.float32))[1].taken


def test_nan_is_not_mistaken_for_agreement():
    trained = algorithm("TD3", VECTOR, BOX)
    with torch.no_grad():
        trained.policy.actor.mu[-2].bias.fill_(torch.nan)
    fast, report = fast_policy(trained, 8)
    assert fast is None
    assert np.isnan(report.largest_difference)


def test_a_network_that_amplifies_rounding_is_run_by_torch():
    """Sums of 256 numbers come in another order from NumPy; tanh of ten times that shows it."""
    trained = algorithm("SAC", VECTOR, BOX)
    with torch.no_grad():
        trained.policy.actor.mu.weight.mul_(10)
    fast, report = fast_policy(trained, 64)
    assert isinstance(fast, TorchFastPolicy)
    assert report.taken
    assert report.reason.startswith("torch forward pass")
    x = draw(VECTOR, 200)
    expected, _ = trained.predict(x, deterministic=True)
    assert (np.abs(fast.predict(x)[0] - expected) / half_width(BOX)).max() <= 1e-6


@pytest.mark.parametrize("width", [64, 7, 100])
@pytest.mark.parametrize("outputs", [1, 2, 7])
def test_a_rows_bits_depend_neither_on_its_place_nor_on_other_rows(width, outputs):
    space = spaces.Box(-100.0, 100.0, (outputs,), np.float32)
    fast, _ = fast_policy(algorithm("PPO", VECTOR, space), width)
    generator = np.random.default_rng(3)
    x = generator.standard_normal((width, 5)).astype(np.float32)
    actions, _ = fast.predict(x)
    for _ in range(20):
        order = generator.permutation(width)
        assert np.array_equal(fast.predict(x[order])[0], actions[order])
        kept = generator.random(width) < 0.3
        other = np.where(kept[:, np.newaxis], x, generator.standard_normal((width, 5)) * 1e3)
        again, _ = fast.predict(other.astype(np.float32))
        assert np.array_equal(again[kept], actions[kept])
    x[1] = np.nan
    with np.errstate(invalid="ignore"):
        again, _ = fast.predict(x)
    assert np.array_equal(again[2:], actions[2:])


def test_any_number_of_rows_is_padded_or_cut_to_the_width():
    trained = algorithm("PPO", VECTOR, BOX)
    fast, _ = fast_policy(trained, 16)
    x = draw(VECTOR, 50)
    whole = np.concatenate([fast.predict(x[i : i + 16])[0] for i in (0, 16, 32)])
    for rows in (1, 15, 16, 17, 48):
        assert np.array_equal(fast.predict(x[:rows])[0], whole[:rows])


def test_actions_are_fresh_arrays_and_observations_are_left_alone():
    fast, _ = fast_policy(algorithm("PPO", VECTOR, BOX), 8)
    x = draw(VECTOR, 8)
    before = x.copy()
    first, _ = fast.predict(x)
    held = first.copy()
    fast.predict(-x)
    assert np.array_equal(first, held)
    assert np.array_equal(x, before)


@pytest.mark.parametrize("amplify", [1, 10])  # by NumPy, by torch
def test_weights_are_read_once(amplify):
    trained = algorithm("SAC", VECTOR, BOX, policy_kwargs={"net_arch": [64, 64, 64]})
    with torch.no_grad():
        trained.policy.actor.mu.weight.mul_(amplify)
    fast, _ = fast_policy(trained, 8)
    assert isinstance(fast, TorchFastPolicy) == (amplify == 10)
    x = draw(VECTOR, 8)
    before, _ = fast.predict(x)
    with torch.no_grad():
        for parameter in trained.policy.parameters():
            parameter.add_(1.0)
    assert np.array_equal(fast.predict(x)[0], before)


def test_wrong_use_is_refused():
    fast, _ = fast_policy(algorithm("PPO", VECTOR, BOX), 8)
    with pytest.raises(ValueError, match="deterministic"):
        fast.predict(draw(VECTOR, 8), deterministic=False)
    with pytest.raises(ValueError, match=r"got shape \(8, 4\), allowed \(8, 5\)"):
        fast.predict(np.zeros((8, 4), np.float32))
    with pytest.raises(ValueError, match="0 rows"):
        fast_policy(algorithm("PPO", VECTOR, BOX), 0)


def test_agents_that_share_a_policy_share_its_fast_path():
    trained = algorithm("PPO", VECTOR, BOX)
    shared = SharedPolicy(trained, ("a", "b"))
    fast, report = fast_policy(shared, 8)
    assert report.taken
    x = draw(spaces.Box(-1, 1, (2, 5)), 8)
    np.testing.assert_allclose(
        fast.predict(x)[0], shared.predict(x, deterministic=True)[0], atol=1e-5
    )
