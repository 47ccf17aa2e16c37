"""Wrappers: a BatchEnv around a BatchEnv. What they change, they count."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from .batch import BatchEnv, Mask, Options, Step
from .spaces import Array, Tree
from .streams import Streams

OPTIONAL = ("action_masks", "acting", "compute_reward", "snapshot", "restore")


class Wrapper(BatchEnv):
    """A BatchEnv that passes everything on to the one inside. Override what differs.

    Args:
        env: the environment inside.
    """

    def __init__(self, env: BatchEnv) -> None:
        super().__init__(env.rows, horizon=env.horizon)
        self.env = env
        self.observation_space = env.observation_space
        self.action_space = env.action_space
        self.agents = env.agents
        for name in OPTIONAL:
            if hasattr(env, name) and not hasattr(type(self), name):
                setattr(self, name, getattr(env, name))

    @property
    def option_names(self) -> tuple[str, ...]:  # type: ignore[override]
        """The options of the environment inside."""
        return self.env.option_names

    @property
    def passes_options_on(self) -> bool:  # type: ignore[override]
        """Whether the environment inside hands options on."""
        return self.env.passes_options_on

    @property
    def metrics_may_be_missing(self) -> bool:  # type: ignore[override]
        """Whether NaN in a metric of the environment inside stands for "none"."""
        return self.env.metrics_may_be_missing

    def stream_name(self) -> str:
        """The name of the environment inside: wrapped or not, the episodes are the same."""
        return self.env.stream_name()

    def begin(self, rows: Mask, streams: Streams, options: Options | None) -> None:
        """Begin in the environment inside."""
        self.env.begin(rows, streams, options)

    def advance(self, actions: Tree, live: Mask, streams: Streams, step: Step) -> None:
        """Advance the environment inside."""
        self.env.advance(actions, live, streams, step)

    def observe(self, rows: Mask | None, streams: Streams, out: Tree) -> None:
        """Observe the environment inside."""
        self.env.observe(rows, streams, out)

    def metrics(self) -> dict[str, Array]:
        """The metrics of the environment inside."""
        return self.env.metrics()

    def render(self, row: int) -> Array:
        """The picture of the environment inside."""
        return self.env.render(row)

    def close(self) -> None:
        """Close the environment inside."""
        self.env.close()


class ClipActions(Wrapper):
    """Accepts any finite action and clips it to the box of the environment inside.

    The metric `clipped_steps` counts the steps of an episode in which a component was clipped.

    Args:
        env: an environment with one agent and a bounded float Box of actions.

    Raises:
        ValueError: another action space.
    """

    def __init__(self, env: BatchEnv) -> None:
        super().__init__(env)
        box = env.action_space
        if env.agents or not (isinstance(box, spaces.Box) and box.dtype.kind == "f"):
            raise ValueError(f"env: got action space {box}, allowed a float Box of one agent")
        self._box = box
        self.action_space = spaces.Box(-np.inf, np.inf, box.shape, box.dtype)
        self._clipped = np.zeros(env.rows, np.int64)
        if hasattr(env, "snapshot"):
            self.snapshot, self.restore = self._snapshot, self._restore

    def begin(self, rows: Mask, streams: Streams, options: Options | None) -> None:
        """Begin, with the count at 0."""
        self._clipped[rows] = 0
        super().begin(rows, streams, options)

    def advance(self, actions: Array, live: Mask, streams: Streams, step: Step) -> None:
        """Clip, count, advance."""
        inside = np.clip(actions, self._box.low, self._box.high)
        changed = (inside != actions).reshape(self.rows, -1).any(axis=1)
        self._clipped += changed & live
        super().advance(inside, live, streams, step)

    def metrics(self) -> dict[str, Array]:
        """The metrics of the environment inside, and `clipped_steps`."""
        return {**super().metrics(), "clipped_steps": self._clipped.copy()}

    def _snapshot(self, rows: Mask) -> dict[str, Array]:
        """The state of the environment inside, and the count."""
        state = self.env.snapshot(rows)  # type: ignore[attr-defined]
        return {**state, "clipped_steps": self._clipped[rows].copy()}

    def _restore(self, state: dict[str, Array], rows: Mask) -> None:
        """Restore both."""
        state = dict(state)
        self._clipped[rows] = state.pop("clipped_steps")
        self.env.restore(state, rows)  # type: ignore[attr-defined]


WRAPPERS = {"clip-actions": "palestra.wrappers:ClipActions"}
