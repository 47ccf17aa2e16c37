"""One training step with everything that people train with, and what a learner is told at ends."""

import warnings

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from sb3_contrib import MaskablePPO
from stable_baselines3 import PPO, SAC, HerReplayBuffer
from stable_baselines3.common.vec_env import VecNormalize

import palestra

from .toys import Blind, Corridor, Counter, Drift, ReachGoal, Swarm, TakeTurns, TwoLocks


@pytest.fixture(autouse=True)
def one_thread_and_own_randomness():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng():
        yield
    torch.set_num_threads(threads)


# --- a loop in the manner of CleanRL -----------------------------------------------------------


class ActorCritic(torch.nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(inputs, 16), torch.nn.Tanh())
        self.mean = torch.nn.Linear(16, outputs)
        self.value = torch.nn.Linear(16, 1)
        self.log_std = torch.nn.Parameter(torch.zeros(outputs))

    def forward(self, seen: torch.Tensor):
        hidden = self.body(seen)
        return torch.distributions.Normal(self.mean(hidden), self.log_std.exp()), self.value(hidden)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_a_loop_in_the_manner_of_cleanrl_trains(mode):
    torch.manual_seed(0)
    view = palestra.make(Drift, "vector", rows=8, autoreset_mode=mode, horizon=10)
    envs = RecordEpisodeStatistics(view)
    agent = ActorCritic(2, 1)
    optimizer = torch.optim.Adam(agent.parameters(), lr=1e-3)
    seen, _ = envs.reset(seed=1)
    over = np.zeros(8, np.bool_)
    log_probs, values, rewards, ends, counted, lengths, returns = [], [], [], [], [], [], []
    for _ in range(64):
        policy, value = agent(torch.as_tensor(seen))
        action = policy.sample()
        log_probs.append(policy.log_prob(action).sum(-1))
        values.append(value[:, 0])
        counted.append(~over if mode is AutoresetMode.NEXT_STEP else np.ones(8, np.bool_))
        seen, reward, terminated, truncated, infos = envs.step(action.clamp(-1, 1).numpy())
        over = terminated | truncated
        rewards.append(reward)
        ends.append(over)
        if "episode" in infos:
            lengths += infos["episode"]["l"][infos["_episode"]].tolist()
            returns += infos["episode"]["r"][infos["_episode"]].tolist()
    # every end was told once, with the length and return that the loop itself saw
    assert len(lengths) == sum(o.sum() for o in ends)
    assert max(lengths) == 10
    assert sum(returns) == pytest.approx(told(rewards, ends, counted)[0], rel=1e-5)
    assert sum(lengths) == told(rewards, ends, counted)[1]
    advantages = torch.zeros(64, 8)
    with torch.no_grad():
        following, last = agent(torch.as_tensor(seen))[1][:, 0], torch.zeros(8)
        for now in reversed(range(64)):
            alive = torch.as_tensor(~ends[now]).float()
            delta = torch.as_tensor(rewards[now]).float() + 0.99 * following * alive - values[now]
            last = delta + 0.99 * 0.95 * alive * last
            advantages[now], following = last, values[now]
    use = torch.as_tensor(np.stack(counted))
    targets = advantages + torch.stack(values).detach()
    loss = -(torch.stack(log_probs) * advantages)[use].mean()
    loss = loss + ((torch.stack(values) - targets)[use] ** 2).mean()
    before = [p.detach().clone() for p in agent.parameters()]
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    assert torch.isfinite(loss)
    assert any((p != b).any() for p, b in zip(agent.parameters(), before, strict=True))


def told(rewards, ends, counted) -> tuple[float, int]:
    """Total return and length of the episodes that ended in a rollout."""
    total, length = 0.0, 0
    for row in range(8):
        running, steps = 0.0, 0
        for reward, end, counts in zip(rewards, ends, counted, strict=True):
            running += reward[row]
            steps += int(counts[row])
            if end[row]:
                total, length, running, steps = total + running, length + steps, 0.0, 0
    return total, length


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_episode_statistics_are_right_after_the_first_episode_too(mode):
    """Issue 13: lengths 3 and returns 3, five episodes in a row."""
    envs = RecordEpisodeStatistics(palestra.make(Counter, "vector", rows=4, autoreset_mode=mode))
    envs.reset(seed=0)
    lengths, returns = [], []
    for _ in range(20):
        infos = envs.step(np.zeros(4, np.int64))[4]
        if "episode" in infos:
            lengths += infos["episode"]["l"][infos["_episode"]].tolist()
            returns += infos["episode"]["r"][infos["_episode"]].tolist()
    assert len(lengths) >= 20
    assert set(lengths) == {3}
    assert set(returns) == {3.0}


def test_single_view_statistics():
    view = gymnasium.wrappers.RecordEpisodeStatistics(palestra.make(Counter))
    for _ in range(5):
        view.reset(seed=0)
        while not (result := view.step(0))[2]:
            pass
        assert (result[4]["episode"]["l"], result[4]["episode"]["r"]) == (3, 3.0)


# --- Stable-Baselines3 -------------------------------------------------------------------------


def small(rows: int, steps: int = 16) -> dict:
    return {
        "n_steps": steps,
        "batch_size": rows * steps // 2,
        "n_epochs": 2,
        "policy_kwargs": {"net_arch": [16]},
        "device": "cpu",
        "seed": 0,
    }


def test_ppo_with_normalisation_learns_one_rollout():
    view = VecNormalize(palestra.make(Drift, "sb3", rows=8))
    model = PPO("MlpPolicy", view, **small(8))
    model.learn(2 * 8 * 16)
    assert model.num_timesteps == 2 * 8 * 16
    assert view.obs_rms.count > 200
    assert len(model.ep_info_buffer) > 5
    assert {"r", "l", "t"} <= set(model.ep_info_buffer[0])


@pytest.mark.parametrize("target", [Corridor, TwoLocks, TakeTurns])
def test_maskable_ppo_takes_no_illegal_action(target):
    """The environment refuses illegal actions, so that one would end the training."""
    view = palestra.make(target, "sb3", rows=8)
    model = MaskablePPO("MlpPolicy", view, **small(view.num_envs))
    model.learn(2 * view.num_envs * 16)
    seen = view.reset()
    for _ in range(200):
        masks = np.stack(view.env_method("action_masks"))
        actions, _ = model.predict(seen, action_masks=masks, deterministic=False)
        seen, *_ = view.step(actions)


def test_an_unmasked_policy_on_a_masked_environment_is_told_so():
    model = PPO("MlpPolicy", palestra.make(Corridor, "sb3", rows=8), **small(8))
    with pytest.raises(ValueError, match=r"action: row \d: got \d, .*mask forbids"):
        model.learn(1000)


def test_sac_with_hindsight_relabels_with_the_rewards_of_the_environment():
    view = palestra.make(ReachGoal, "sb3", rows=4)
    model = SAC(
        "MultiInputPolicy",
        view,
        replay_buffer_class=HerReplayBuffer,
        replay_buffer_kwargs={"n_sampled_goal": 4, "goal_selection_strategy": "future"},
        learning_starts=60,
        batch_size=32,
        train_freq=1,
        policy_kwargs={"net_arch": [16]},
        device="cpu",
        seed=0,
    )
    model.learn(240)
    assert model.num_timesteps == 240
    batch = model.replay_buffer.sample(200)
    achieved = batch.next_observations["achieved_goal"].numpy()
    desired = batch.next_observations["desired_goal"].numpy()
    expected = ReachGoal(1).compute_reward(achieved, desired)
    assert (batch.rewards.numpy()[:, 0] == expected).all()
    assert set(expected.tolist()) == {-1.0, 0.0}  # relabelling finds successes that never were


def test_ppo_on_agents_as_rows_learns_one_rollout():
    view = palestra.make(Swarm, "sb3", rows=4)
    model = PPO("MlpPolicy", view, **small(12))
    model.learn(2 * 12 * 16)
    assert model.num_timesteps == 2 * 12 * 16
    assert len(model.ep_info_buffer) > 10


def test_wrappers_of_stable_baselines3_do_not_wrap_the_view_again():
    view = palestra.make(Drift, "sb3", rows=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = PPO("MlpPolicy", view, **small(2))
    assert model.get_env() is view


# --- time limits -------------------------------------------------------------------------------


@pytest.mark.parametrize("truncated", [True, False])
def test_ppo_values_a_time_limit_as_a_cut_and_a_termination_as_an_end(truncated):
    """Issue 10, reference value 6: r = 1, gamma = 0.9, truncated at 5: 10.

    Blind to its step, a value is the mean over the five places of an episode. Terminated at 5,
    that is the mean of (1 - 0.9^k) / (1 - 0.9) for k = 1 .. 5, or 2.63.
    """
    settings = {"length": None, "horizon": 5} if truncated else {"length": 5}
    view = palestra.make(Blind, "sb3", rows=8, **settings)
    model = PPO(
        "MlpPolicy",
        view,
        n_steps=10,
        batch_size=80,
        n_epochs=10,
        gamma=0.9,
        gae_lambda=1.0,
        learning_rate=0.03,
        vf_coef=1.0,
        max_grad_norm=100.0,
        policy_kwargs={"net_arch": [8]},
        device="cpu",
        seed=0,
    )
    model.learn(80 * 60)
    with torch.no_grad():
        value = float(model.policy.predict_values(torch.zeros(1, 1)))
    exact = 10.0 if truncated else np.mean([(1 - 0.9**k) / 0.1 for k in range(1, 6)])
    assert value == pytest.approx(exact, rel=0.05)


@pytest.mark.parametrize("truncated", [True, False])
def test_tabular_values_of_the_vector_view(truncated):
    """The same number by a table, from the ends and last observations of the vector view."""
    settings = {"length": None, "horizon": 5} if truncated else {"length": 5}
    view = palestra.make(Counter, "vector", rows=4, autoreset_mode="SAME_STEP", **settings)
    table = np.zeros(7)
    seen, _ = view.reset(seed=0)
    for _ in range(2000):
        place = seen[:, 0].astype(int)
        seen, reward, terminated, _, infos = view.step(np.zeros(4, np.int64))
        following = seen[:, 0].astype(int)
        if "final_obs" in infos:
            following = np.array([int(one[0]) for one in infos["final_obs"]])
        # one action, so the state after the cut is as good as any state: V(5) = V(0)
        beyond = np.where(following == 5, table[0], table[following])
        target = reward + 0.9 * np.where(terminated, 0.0, beyond)
        np.add.at(table, place, 0.05 * (target - table[place]))
    exact = 10.0 if truncated else 1 + 0.9 + 0.81 + 0.729 + 0.6561
    assert table[0] == pytest.approx(exact, rel=0.01)
