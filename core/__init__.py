"""palestra: scientific environments, agents, controllers and checkable certificates.

This package is the core that everything else stands on. It knows no family of environments.
Names are imported when they are first used, so that `import palestra` stays light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .registry import register_with_gymnasium

if TYPE_CHECKING:
    from .batch import BatchEnv as BatchEnv
    from .batch import Step as Step
    from .film import watch as watch
    from .gym_batch import GymBatch as GymBatch
    from .kernels import kernel as kernel
    from .onnx_export import export_onnx as export_onnx
    from .policy_loading import load_policy as load_policy
    from .rollout import compare as compare
    from .rollout import evaluate as evaluate
    from .saved import load as load
    from .streams import Streams as Streams
    from .trajectories import Trajectories as Trajectories
    from .views import make as make

__version__ = "0.1.0"

_HOMES = {
    "BatchEnv": "batch",
    "GymBatch": "gym_batch",
    "Step": "batch",
    "Streams": "streams",
    "Trajectories": "trajectories",
    "compare": "rollout",
    "evaluate": "rollout",
    "export_onnx": "onnx_export",
    "kernel": "kernels",
    "load": "saved",
    "load_policy": "policy_loading",
    "make": "views",
    "watch": "film",
}

__all__ = [*sorted(_HOMES), "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


register_with_gymnasium()
