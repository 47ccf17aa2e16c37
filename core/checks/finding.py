"""What a check can say, and how serious it is."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

ERROR, WARNING, NOT_APPLICABLE = "error", "warning", "not applicable"


@dataclass(frozen=True)
class Rule:
    """One thing that must hold.

    Attributes:
        name: what findings call it.
        what: what must hold, for a person.
        foreign: how serious it is in an environment of Gymnasium or PettingZoo.
        ours: how serious it is in a BatchEnv, shipped or brought.
    """

    name: str
    what: str
    foreign: str
    ours: str


_BOTH, _OURS, _NEITHER = (ERROR, ERROR), (WARNING, ERROR), (WARNING, WARNING)

RULES = {
    name: Rule(name, what, *levels)
    for name, what, levels in (
        ("builds", "it can be built, and has spaces", _BOTH),
        ("raises", "no legal call raises", _BOTH),
        ("hangs", "every call returns", _BOTH),
        ("determinism", "one seed gives one course: again, after other play, in a new copy", _BOTH),
        ("fresh-process", "the same course in a freshly spawned process", _BOTH),
        ("shared-state", "a second copy that plays beside it changes nothing", _BOTH),
        ("global-random", "the random state of random, numpy and torch is untouched", _BOTH),
        ("episodes-differ", "reset() without a seed does not repeat the first episode", _NEITHER),
        ("aliasing", "arrays that were handed out never change later", _BOTH),
        ("actions-kept", "actions are not modified in place", _BOTH),
        ("arrays-owned", "what others write into its arrays and their actions is no input", _OURS),
        ("finite", "legal actions give no NaN and no infinity", _BOTH),
        ("honest-spaces", "observations lie in their space", _BOTH),
        ("returns", "rewards, flags and infos have their types", _OURS),
        ("info-types", "an entry of info keeps its type", _OURS),
        ("masks", "masks have the shape of the actions and are never empty", _BOTH),
        ("masks-respected", "a masked action is refused", _OURS),
        ("ends", "episodes end", _NEITHER),
        ("limit", "the time limit ends an episode at its step, by truncation", _BOTH),
        ("memory", "memory stays flat", _OURS),
        ("order", "a step before reset and after the end is refused", _OURS),
        ("bad-actions", "actions outside the space are refused", _OURS),
        ("clipping", "actions outside the space are not clipped in silence", _OURS),
        ("action-types", "equal actions of other number types do the same", _OURS),
        ("copies", "a pickle and a deep copy go on exactly", _OURS),
        ("snapshot", "its state can be kept, and restored exactly", _OURS),
        ("rows", "a row does not depend on its place and on other rows", _BOTH),
        ("idle-rows", "rows that do not step stay as they are", _BOTH),
        ("observe", "observe() and metrics() give the same bits twice and change nothing", _BOTH),
        ("single-equals-batch", "one row gives the same bits as many", _BOTH),
        ("autoreset", "every autoreset mode plays the same episodes", _BOTH),
        ("render", "every declared mode draws without a display and changes nothing", _OURS),
        ("close", "close() may be called twice", _OURS),
        ("space-types", "spaces that learners can use", _NEITHER),
        ("stock: gymnasium", "Gymnasium's check_env", _OURS),
        ("stock: stable-baselines3", "Stable-Baselines3's check_env", _OURS),
        ("stock: pettingzoo", "PettingZoo's api test", _OURS),
    )
}


@dataclass(frozen=True)
class Finding:
    """Something that does not hold, or could not be looked at.

    Attributes:
        check: a name in `RULES`.
        level: "error", "warning" or "not applicable".
        environment: the name of the environment.
        message: what was seen, or why nothing was looked at.
        episode: the episode of the play that shows it, counted from 0, where there is one.
        step: its step; 0 is the reset.
        field: what differs, such as "observation/camera" or "reward".
        script: the smallest program that shows it.
    """

    check: str
    level: str
    environment: str
    message: str
    episode: int | None = None
    step: int | None = None
    field: str | None = None
    script: str | None = None

    def place(self) -> str:
        """Episode, step and field in words, as far as they are known."""
        parts = [f"{n} {v}" for n, v in (("episode", self.episode), ("step", self.step))]
        known = [part for part in parts if not part.endswith("None")]
        return ", ".join([*known, *([self.field] if self.field else [])])


@dataclass(frozen=True)
class Held:
    """A check that found nothing.

    Attributes:
        check: a name in `RULES`.
        note: how far it looked.
    """

    check: str
    note: str = ""


@dataclass(frozen=True)
class Started:
    """A check begins: what a person sees as progress."""

    check: str


@dataclass(frozen=True)
class Course:
    """The digests of the reference course, to be compared between processes.

    Attributes:
        calls: for each call episode, step and the digest of each field.
    """

    calls: tuple[tuple[int, int, dict[str, str]], ...]


Event = Finding | Held | Started | Course
_KINDS = {kind.__name__: kind for kind in (Finding, Held, Started, Course)}


def to_record(event: Event) -> dict[str, Any]:
    """An event as JSON can hold it."""
    return {"event": type(event).__name__, **asdict(event)}


def from_record(record: dict[str, Any]) -> Event:
    """The event of a record."""
    values = dict(record)
    event: Event = _KINDS[values.pop("event")](**values)
    return event
