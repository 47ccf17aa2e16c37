"""Train PPO on the native Stable-Baselines3 view, and judge it beside a classical sequence."""

from stable_baselines3 import PPO

import palestra

env = palestra.make("NMRRelax", "sb3", rows=64, sample="oil")
model = PPO(
    "MlpPolicy",
    env,
    n_steps=16,
    batch_size=256,
    gamma=1.0,
    learning_rate=1e-3,
    seed=0,
    device="cpu",
)
model.learn(total_timesteps=4_096)  # far too few; 600 000 give the result of `palestra run`

result = palestra.compare(
    {"waiting": "wait", "DEFT": "deft", "PPO": model}, "NMRRelax", episodes=256, seed=7
)
for name, evaluation in result.evaluations.items():
    print(f"{name:8} back at equilibrium after {evaluation.mean('time_to_equilibrium')} s")
