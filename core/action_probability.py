"""The probability of the actions that a policy took, as recorded trajectories keep it.

It is the probability under the policy's own distribution, as it was played: what an off-policy
estimator divides by. Sampled actions of discrete spaces have a probability. Sampled actions of a
Box have a density, times the probability of the saturated components where a network's Gaussian
is clipped at the bounds. A deterministic policy takes its action with probability 1 where actions
are discrete; in a Box it has no density, and the probability counts as unknown. So does that of
every policy that does not tell.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

import numpy as np

from .fast_policy import FastPolicy
from .onnx_policy import OnnxPolicy
from .policy import (
    AgentPolicies,
    NoProbability,
    NormalisedPolicy,
    SharedPolicy,
    batch_size,
    certain_probability,
)
from .spaces import Array, Tree, map_tree


def action_probability(
    policy: Any,
    observation: Tree,
    actions: Tree,
    *,
    state: Any,
    episode_start: Array,
    deterministic: bool,
    action_masks: Tree = None,
) -> Array | None:
    """The probability of each action; see the module for its definition.

    Args:
        policy: what took the actions.
        observation: (B, ...), what it saw.
        actions: (B, ...), in the types of the action space.
        state: what it remembered before.
        episode_start: bool (B,).
        deterministic: as it was asked.
        action_masks: what it was given; None where it was given none.

    Returns:
        float64 (B,), with agents (B, A), NaN for the agents whose policy does not tell; None
        where nothing is known.

    Raises:
        ValueError: the policy's `action_prob` gives anything but probabilities (B,) or (B, A).
    """
    given = {
        "state": state,
        "episode_start": episode_start,
        "deterministic": deterministic,
        "action_masks": action_masks,
    }
    if isinstance(policy, AgentPolicies):
        return _of_each_agent(policy, observation, actions, given)
    if isinstance(policy, SharedPolicy):
        return _of_shared(policy, observation, actions, given)
    if isinstance(policy, NormalisedPolicy):
        inner = policy.normalisation(observation)
        return action_probability(policy.policy, inner, actions, **given)
    try:
        return _of_one(policy, observation, actions, given)
    except NoProbability:
        return None


def _of_one(policy: Any, observation: Tree, actions: Tree, given: dict[str, Any]) -> Array:
    deterministic = given["deterministic"]
    if hasattr(policy, "action_prob"):
        named = inspect.signature(policy.action_prob).parameters
        if deterministic and "deterministic" not in named:
            raise NoProbability("its action_prob tells only of sampled actions")
        chosen = {name: value for name, value in given.items() if name in named}
        return _checked(policy, policy.action_prob(observation, actions, **chosen), observation)
    if isinstance(policy, FastPolicy | OnnxPolicy):  # neither has random numbers
        return certain_probability(policy.action_space, batch_size(observation))
    if _is_sb3(policy):
        from .sb3_networks import network_probability

        network = getattr(policy, "policy", policy)
        return network_probability(
            network, observation, actions, deterministic, given["action_masks"]
        )
    raise NoProbability(f"a {type(policy).__name__} does not tell")


def _is_sb3(policy: Any) -> bool:
    if "stable_baselines3" not in sys.modules:  # then nothing can be of it
        return False
    from stable_baselines3.common.base_class import BaseAlgorithm
    from stable_baselines3.common.policies import BasePolicy

    return isinstance(policy, BaseAlgorithm | BasePolicy)


def _checked(policy: Any, answer: Any, observation: Tree) -> Array:
    values, rows = np.asarray(answer, np.float64), batch_size(observation)
    if values.ndim not in (1, 2) or len(values) != rows:
        raise ValueError(
            f"action_prob: {type(policy).__name__} gave shape {values.shape}, allowed ({rows},), "
            f"with agents ({rows}, agents)"
        )
    if not (values >= 0.0).all() or np.isinf(values).any():
        raise ValueError(f"action_prob: {type(policy).__name__} gave numbers that are no densities")
    return values


def _of_each_agent(
    policy: AgentPolicies, observation: Tree, actions: Tree, given: dict[str, Any]
) -> Array:
    def part(tree: Tree, agent: str, index: int) -> Tree:
        if isinstance(tree, dict) and set(tree) == set(policy.agents):
            return tree[agent]
        return map_tree(lambda array: array[:, index], tree)

    columns = []
    for index, (agent, own) in enumerate(policy.policies.items()):
        state, masks = given["state"], given["action_masks"]
        chosen = given | {
            "state": None if state is None else state[agent],
            "action_masks": None if masks is None else part(masks, agent, index),
        }
        seen, taken = part(observation, agent, index), part(actions, agent, index)
        known = action_probability(own, seen, taken, **chosen)
        columns.append(np.full(batch_size(seen), np.nan) if known is None else known)
    return np.stack(columns, axis=1)


def _of_shared(
    policy: SharedPolicy, observation: Tree, actions: Tree, given: dict[str, Any]
) -> Array | None:
    rows, agents = batch_size(observation), len(policy.agents)

    def join(tree: Tree) -> Tree:
        return map_tree(lambda a: np.reshape(a, (rows * agents, *np.shape(a)[2:])), tree)

    masks = given["action_masks"]
    chosen = given | {
        "episode_start": np.repeat(given["episode_start"], agents),
        "action_masks": None if masks is None else join(masks),
    }
    known = action_probability(policy.policy, join(observation), join(actions), **chosen)
    return None if known is None else known.reshape(rows, agents)
