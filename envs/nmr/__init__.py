"""Nuclear magnetic resonance: pulses that bring spins to where they are wanted, fast.

`bloch` is the physics, `events` the currency (pulse, delay, receiver), `sample` what is in the
magnet, `pulses` what the textbook says about pulses and trains, `information` and `estimation` what
a record tells. `env` has the environments of single pulses. Whole measurements are made of `shots`:
`posterior` and `measuring` compile them, `measurement` is what `abundance` and `team` share.
"""

# What `palestra anchors` measures: the scored metric, its better direction, the classical policies,
# and the bound (a metric of the episode, or a number).
ANCHORS = {
    "NMRRelax": {
        "metric": "time_to_equilibrium",
        "direction": "min",
        "classical": ("wait", "deft", "deft-compensated"),
        "bound": "time_floor",
    },
    "NMRAlign": {
        "metric": "signal_kept",
        "direction": "max",
        "classical": ("ninety", "echo", "echo-ninety"),
        "bound": 1.0,
    },
    "NMRAbundance": {
        "metric": "time_over_bound",
        "direction": "min",
        "classical": ("ninety-5t1", "cpmg-5t1", "cpmg-tuned", "de-cpmg", "bssfp"),
        "bound": 1.0,
    },
}
