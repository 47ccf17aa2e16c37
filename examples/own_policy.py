"""Three controllers of the room, on the same 200 episodes."""

import numpy as np
from own_environment import OUTSIDE, WANTED, Room

import palestra


class Integrating:
    """A controller with a memory: proportional, and integral of the error."""

    def predict(self, observation, state=None, episode_start=None, deterministic=True):
        error = WANTED - observation
        total = np.zeros_like(error) if state is None else state.copy()
        total[episode_start] = 0.0  # forget, where an episode begins
        total = np.clip(total + error, -20.0, 20.0)  # no wind-up at full power
        power = 1.5 * error + 0.02 * total + 0.02 * (WANTED - OUTSIDE) / 0.6
        return np.clip(power, 0.0, 1.0).astype(np.float32), total


def on_off(observation):
    """A plain function: observations (B, 1) -> actions (B, 1)."""
    return (observation < WANTED).astype(np.float32)


result = palestra.compare(
    {"on-off": on_off, "integrating": Integrating(), "random": "random"},
    Room,
    episodes=200,
    seed=1,
)
for name, evaluation in result.evaluations.items():
    print(f"{name:12} return {evaluation.mean()}, energy {evaluation.mean('energy')}")
print("integrating - on-off:", result.difference("integrating").difference)
