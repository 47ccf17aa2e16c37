# %% [markdown]
# # Your own data
# An environment of the NMR family takes your sample instead of a preset. Every field has a unit, a
# default and a range; what is not allowed is refused with the name of the field.

# %%
from pathlib import Path
from tempfile import mkdtemp

import palestra

folder = Path(mkdtemp())
sample = folder / "wine.toml"
sample.write_text("""
name = "wine"
comment = "invented numbers; measure yours"

[[species]]  # CH3
fraction = 0.5
T1 = 2.1
T2 = 1.0

[[species]]  # CH2
fraction = 0.5
T1 = 1.4
T2 = 0.7
shift_hz = 214.0

[field]
b0_fwhm_hz = 30.0

[instrument]
pulse_model = "finite"
""")
result = palestra.compare(
    ["wait", "deft"], "NMRRelax", settings={"sample": str(sample)}, episodes=128, seed=3
)
result

# %% [markdown]
# A mistake is named:

# %%
sample.write_text(sample.read_text().replace("T2 = 1.0", "T2 = 5.0"))
try:
    palestra.make("NMRRelax", sample=str(sample))
except ValueError as mistake:
    print(mistake)
else:
    raise AssertionError("T2 may not exceed 2 T1")

# %% [markdown]
# A run keeps the hash of the file, so an edited sample is another run, never a silent mixture.
