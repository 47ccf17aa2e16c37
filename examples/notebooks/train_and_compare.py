# %% [markdown]
# # Train and compare
# Train PPO on three seeds and put the runs beside a classical controller. The budget is small, so
# that this notebook ends within a minute; `docs/results` has the full one.

# %%
import tempfile
from pathlib import Path

import palestra
from palestra.run_comparison import compare_runs
from palestra.train import TrainConfig, train

folder = Path(tempfile.mkdtemp())
for seed in range(3):
    config = TrainConfig(
        environment="NMRRelax",
        algorithm="ppo",
        seed=seed,
        steps=16_384,
        rows=64,
        evaluate_every=8_192,
        evaluation_episodes=64,
        hyperparameters={"gamma": 1.0, "n_steps": 32, "batch_size": 512, "learning_rate": 1e-3},
    )
    train(config, folder / f"ppo-{seed}")

# %% [markdown]
# Every training keeps its curve, the return on held-out episodes and every metric, as an Arrow
# table.

# %%
palestra.load(folder / "ppo-0").metrics.select(["steps", "return", "time_to_equilibrium"])

# %% [markdown]
# The three seeds of one configuration are one learner. Three runs are too few for an interval over
# training runs, and palestra says so instead of printing one.

# %%
learners = compare_runs([folder / f"ppo-{seed}" for seed in range(3)], "time_to_equilibrium")
print(learners.learners[0].mean)
learners

# %% [markdown]
# ## Against the classics
# A seed that no training has seen.

# %%
policies = {"wait": "wait", "deft": "deft", "ppo": folder / "ppo-0"}
both = palestra.compare(policies, "NMRRelax", episodes=256, seed=99)
for name in ("deft", "ppo"):
    print(name, both.difference(name, "time_to_equilibrium").difference)
