# %% [markdown]
# # Quick start
# Build an environment, play in it, evaluate two controllers on the same episodes.

# %%
import gymnasium

import palestra

env = palestra.make("NMRRelax", sample="oil")  # a gymnasium.Env
observation, info = env.reset(seed=0)
print(env.observation_space, env.action_space, sep="\n")

# %% [markdown]
# The same environment through Gymnasium, and for 64 episodes side by side:

# %%
same = gymnasium.make("palestra/NMRRelax-v0", sample="oil")
again, _ = same.reset(seed=0)
assert (again == observation).all()

vector = palestra.make("NMRRelax", "vector", rows=64)
observations, infos = vector.reset(seed=0)
observations, rewards, terminated, truncated, infos = vector.step(vector.action_space.sample())
print(observations.shape, rewards.shape)

# %% [markdown]
# ## Evaluate
# Episodes 0 to 255 of seed 7, played with the classical sequence DEFT. Seed and number determine an
# episode: whoever evaluates these 256 episodes gets this table.

# %%
result = palestra.evaluate("deft", "NMRRelax", episodes=256, seed=7)
result

# %% [markdown]
# ## Compare
# Both policies play the same episodes, so the difference is taken episode by episode.

# %%
both = palestra.compare(["wait", "deft"], "NMRRelax", episodes=256, seed=7)
print(both.difference("deft", "time_to_equilibrium").difference)
both

# %% [markdown]
# ## Watch
# Episode 3 of seed 7 as pictures: the very episode that was evaluated above.

# %%
palestra.watch("NMRRelax", "deft", seed=7, episode=3)
