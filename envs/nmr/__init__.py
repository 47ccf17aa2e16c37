"""Nuclear magnetic resonance: pulses that bring spins to where they are wanted, fast.

`bloch` is the physics, `events` the currency (pulse, delay, receiver), `sample` what is in the
magnet, `pulses` what the textbook says about pulses and trains; `env` and `render` stand on them.
"""
