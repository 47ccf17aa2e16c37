# %% [markdown]
# # Scale out
# The same table wherever it is played: in this process, in worker processes, in the parts of an
# array job. Work travels as references, so policies and environments have names or files.

# %%
import tempfile
from pathlib import Path

from palestra import evaluate
from palestra.executors import Processes
from palestra.rollout import merge

folder = Path(tempfile.mkdtemp())
job = {"policy": "deft", "target": "NMRRelax", "episodes": 512, "seed": 7, "block": 128}

if __name__ == "__main__":  # worker processes read this file
    here = evaluate(**job)
    workers = evaluate(**job, executor=Processes(workers=2))
    assert workers.table.equals(here.table)
    print(here.mean("time_to_equilibrium"))

# %% [markdown]
# Three jobs of a cluster would each run one of these lines, on any machine that sees the folder, in
# any order and at any time; `merge` checks that nothing is missing and seals it.

# %%
if __name__ == "__main__":
    for index in range(3):
        evaluate(**job, run=folder, shard=(index, 3))
    merged = merge(folder)
    assert merged.table.equals(here.table)

# %% [markdown]
# With Ray it is `executor="ray"`, or `palestra.executors.Ray(address="auto")` on a cluster.
