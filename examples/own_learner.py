"""A learner of your own: random search for the gain of u = -K x."""

import json
import tempfile
from pathlib import Path

import numpy as np

from palestra.policy import LinearPolicy
from palestra.policy_files import policy_files, read_policy
from palestra.train import TrainConfig, train


class RandomSearch:
    """Disturb the best gain, play an episode in each row, keep the better one."""

    def __init__(self, policy, env, seed=0, device="cpu", spread=3.0):
        self.env, self.spread = env, spread / env.observation_space.high
        self.random = np.random.default_rng(seed)
        env.seed(seed)
        shape = (env.action_space.shape[0], env.observation_space.shape[0])
        self.gain, self.best = np.zeros(shape), -np.inf

    def learn(self, total_timesteps):
        done = 0
        while done < total_timesteps:
            noise = self.random.standard_normal(self.gain.shape)
            gain = self.gain + self.spread * noise
            score, steps = self.play(gain)
            done += steps
            if score > self.best:
                self.gain, self.best = gain, score
        return self

    def play(self, gain):
        policy = LinearPolicy(gain, self.env.action_space)
        observation, returns = self.env.reset(), np.zeros(self.env.num_envs)
        playing, steps = np.ones(self.env.num_envs, bool), 0
        while playing.any():
            actions, _ = policy.predict(observation)
            observation, reward, over, _ = self.env.step(actions)
            returns += reward * playing
            steps += int(playing.sum())
            playing &= ~over
        return float(returns.mean()), steps

    def policy(self):
        return LinearPolicy(self.gain, self.env.action_space)

    def predict(self, observation, *arguments, **named):
        return self.policy().predict(observation, *arguments, **named)

    def policy_files(self):
        """What makes the run folder a policy: its files, name -> bytes."""
        return policy_files(self.policy())

    def state_files(self):
        """What else is needed to go on."""
        state = {"best": self.best, "random": self.random.bit_generator.state}
        return {"state.json": json.dumps(state).encode()}

    def restore_files(self, files):
        """Go on from a checkpoint, which holds both."""
        state = json.loads(files["state.json"])
        self.gain, self.best = read_policy(files).gain, state["best"]
        self.random.bit_generator.state = state["random"]


if __name__ == "__main__":
    config = TrainConfig(
        environment="MountainCarContinuous-v0",
        algorithm=f"{Path(__file__).resolve()}:RandomSearch",
        rows=2,
        steps=40_000,
        evaluate_every=20_000,
        evaluation_episodes=8,
    )
    with tempfile.TemporaryDirectory() as folder:
        trained = train(config, folder)
    for point in trained.curve:
        print(f"{point['steps']} steps: return {point['mean']:.1f}")
