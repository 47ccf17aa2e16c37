# %% [markdown]
# # Sign off a controller
# Somebody hands you a controller. This is what can be said of it from episodes; certificates, which
# say what holds without playing, come in a later version.

# %%
import tempfile

import palestra
from palestra.stats import success_rate
from palestra.store import RunFolder

controller = "deft-compensated"

# %% [markdown]
# **On the same episodes as its rivals**, on a seed that nobody tuned on.

# %%
both = palestra.compare(["wait", "deft", controller], "NMRRelax", episodes=512, seed=20_251)
for name in ("deft", controller):
    print(name, both.difference(name, "time_to_equilibrium").difference)

# %% [markdown]
# **Against a bound.** No pulses bring this sample back sooner than its `time_floor`. A controller
# that beats it has found an error in the simulation.

# %%
mine = both.evaluations[controller]
times, floors = mine.column("time_to_equilibrium"), mine.column("time_floor")
assert (times >= floors).all()
print(f"{times.mean() / floors.mean():.2f} times the floor")

# %% [markdown]
# **How often does it fail?** No failure in n episodes is not a rate of zero: the interval says what
# n episodes can exclude.

# %%
late = int((times > 2.0).sum())
print(success_rate(late, len(times)))

# %% [markdown]
# **Where does it fail?** The table has one row an episode; each can be played again by its number.

# %%
worst = int(mine.column("episode")[times.argmax()])
print(f"the slowest is episode {worst}: {times.max():.2f} s")

# %% [markdown]
# **On file.** A run folder can be checked by anyone: every block against its hash.

# %%
folder = tempfile.mkdtemp()
palestra.evaluate(controller, "NMRRelax", episodes=512, seed=20_251, run=folder)
assert RunFolder.open(folder).verify() == ()
