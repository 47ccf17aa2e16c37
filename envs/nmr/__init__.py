"""Nuclear magnetic resonance: pulses that bring spins to where they are wanted, fast.

`bloch` is the physics, `events` the currency (pulse, delay, receiver), `sample` what is in the
magnet, `pulses` what the textbook says about pulses and trains; `env` and `render` stand on them.
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
}
