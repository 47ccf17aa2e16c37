"""What a policy is, told by its numbers: two policies of one fingerprint act alike."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from .function_identity import function_bytes
from .onnx_policy import OnnxPolicy
from .policy import (
    AgentPolicies,
    FunctionPolicy,
    LinearPolicy,
    Normalisation,
    NormalisedPolicy,
    SharedPolicy,
    StateSpacePolicy,
)
from .spaces import Array


def fingerprint(policy: Any) -> str | None:
    """SHA-256 over the numbers of a policy: weights, statistics, gains (names, shapes, bytes).

    Of an ONNX file over its bytes; of a plain function over its code, see
    `palestra.function_identity`. None where something in the policy is not known here, such as an
    object of a class of your own.
    """
    if isinstance(policy, OnnxPolicy):
        return policy.sha256
    digest = hashlib.sha256()
    try:
        for name, array in _numbers(policy):
            digest.update(f"{name}{array.shape}{array.dtype}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
    except LookupError:
        return None
    return digest.hexdigest()


def _numbers(policy: Any) -> Iterator[tuple[str, Array]]:
    if isinstance(policy, AgentPolicies):
        for agent, part in policy.policies.items():
            yield from ((f"{agent}/{name}", array) for name, array in _numbers(part))
        return
    statistics = getattr(policy, "normalisation", None)
    if isinstance(statistics, Normalisation):
        for key in sorted(statistics.mean):
            yield f"mean/{key}", statistics.mean[key]
            yield f"variance/{key}", statistics.variance[key]
        yield "epsilon, limit", np.array([statistics.epsilon, statistics.limit])
    if isinstance(policy, SharedPolicy | NormalisedPolicy):
        yield from _numbers(policy.policy)
    elif isinstance(policy, LinearPolicy):
        yield "gain", policy.gain
    elif isinstance(policy, StateSpacePolicy):
        yield from ((name, getattr(policy, name)) for name in "ABCD")
    elif hasattr(network := getattr(policy, "policy", policy), "state_dict"):
        for name, tensor in sorted(network.state_dict().items()):
            yield name, tensor.detach().cpu().numpy()
    elif isinstance(policy, OnnxPolicy):
        yield "ONNX file", np.frombuffer(bytes.fromhex(policy.sha256), np.uint8)
    elif isinstance(policy, FunctionPolicy) and (code := function_bytes(policy.function)):
        yield type(policy).__name__, np.frombuffer(code, np.uint8)
    else:
        raise LookupError(f"what a {type(policy).__name__} does is not known here")
