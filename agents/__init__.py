"""Policies that learn.

Each has `learn`, `predict`, `save` and `load` in the manner of Stable-Baselines3. What they save
is JSON and safetensors; nothing is unpickled when they load.
"""
