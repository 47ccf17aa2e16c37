"""Policies that do not learn: classical, model-based and optimal controllers.

Each follows the policy protocol of the core, so that it is evaluated on the same episodes, by
the same runner, as a policy that learns.
"""
