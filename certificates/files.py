"""A certificate: a claim that a machine can check again, as one file that can be mailed.

The file is safetensors with one JSON document in its metadata. One file rather than a folder: it
has one hash, it cannot be torn apart, and any safetensors library shows what is in it. Nothing in
it is code, no class is imported by a name that it holds.
"""

from __future__ import annotations

import html
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from palestra import __version__
from palestra.disk import write_atomic
from palestra.safe_files import MalformedFile
from palestra.spaces import Array

from .check import reading

SUFFIX = ".cert"
KINDS = (
    "stability",
    "almost-everywhere stability",
    "reach",
    "safety",
    "region of attraction",
    "competitive ratio",
    "optimality gap",
    "time bound",
    "energy budget",
    "consensus",
    "trap freedom",
    "epsilon-equilibrium",
    "learning recursion",
)
METHODS = ("sound bounds", "linear-programming duality", "closed form", "statistical")
DIRECTIONS = ("<=", ">=")


@dataclass(frozen=True)
class Claim:
    """What is guaranteed.

    Attributes:
        kind: one of `KINDS`.
        statement: in one or two sentences.
        numbers: by name, each a finite number.
        bounds: what it says of every episode: (metric, direction, value).
    """

    kind: str
    statement: str
    numbers: Mapping[str, float]
    bounds: tuple[tuple[str, str, float], ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind: got {self.kind!r}, allowed {', '.join(KINDS)}")
        if not self.statement:
            raise ValueError("statement: got none, allowed a sentence")
        for name, value in self.numbers.items():
            if not np.isfinite(value):
                raise ValueError(f"numbers[{name!r}]: got {value!r}, allowed finite numbers")
        for _, direction, value in self.bounds:
            if direction not in DIRECTIONS or not np.isfinite(value):
                raise ValueError(
                    f"bounds: got {direction!r} {value!r}, allowed {', '.join(DIRECTIONS)} and a "
                    "finite number"
                )


@dataclass(frozen=True)
class Certificate:
    """A claim, what it is about, and all that a checker needs.

    Attributes:
        topic: which checker: a module of `palestra.certificates.check`.
        claim: what is guaranteed.
        method: how it was shown, one of `METHODS`.
        system: the plant in numbers and words.
        domain: where it holds.
        arrays: by name; float64, int64 or uint8.
        confidence: of a statistical claim, and of no other.
        assumptions: what is taken for granted.
        not_covered: what it does not say.
        provenance: who made it, when, with what.
    """

    topic: str
    claim: Claim
    method: str
    system: Mapping[str, Any]
    domain: str
    arrays: Mapping[str, Array] = field(repr=False)
    confidence: float | None = None
    assumptions: tuple[str, ...] = ()
    not_covered: tuple[str, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"method: got {self.method!r}, allowed {', '.join(METHODS)}")
        statistical = self.method == "statistical"
        if statistical != (self.confidence is not None):
            raise ValueError(
                f"confidence: got {self.confidence!r} for method {self.method!r}, allowed a level "
                "for 'statistical' and None for any other"
            )

    def episode_bounds(self) -> tuple[tuple[str, str, float], ...]:
        """What every episode must keep to: (metric, "<=" or ">=", value)."""
        return self.claim.bounds

    def document(self) -> dict[str, Any]:
        """All but the arrays, as plain JSON."""
        claim = self.claim
        return {
            "format": reading.FORMAT,
            "schema": reading.SCHEMA,
            "topic": self.topic,
            "claim": {
                "kind": claim.kind,
                "statement": claim.statement,
                "numbers": {name: float(value) for name, value in claim.numbers.items()},
                "bounds": [list(bound) for bound in claim.bounds],
            },
            "method": {"kind": self.method, "confidence": self.confidence},
            "system": dict(self.system),
            "domain": self.domain,
            "assumptions": list(self.assumptions),
            "not_covered": list(self.not_covered),
            "hashes": {name: reading.digest(array) for name, array in self.arrays.items()},
            "provenance": {"palestra": __version__, **self.provenance},
        }

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the file; the same certificate gives the same bytes.

        Raises:
            ValueError: an array of another type than float64, int64, uint8.
        """
        from safetensors.numpy import save

        for name, array in self.arrays.items():
            if array.dtype not in reading.TYPES.values():
                raise ValueError(
                    f"arrays[{name!r}]: got {array.dtype}, allowed float64, int64, uint8"
                )
        text = json.dumps(self.document(), ensure_ascii=False, allow_nan=False, sort_keys=True)
        arrays = {name: np.ascontiguousarray(array) for name, array in self.arrays.items()}
        write_atomic(Path(path), save(arrays, {"certificate": text}))
        return Path(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Certificate:
        """Read a file; that it is whole is checked, that it is true is not: see `verify`.

        Raises:
            MalformedFile: it is no certificate, damaged, or of a newer schema.
            FileNotFoundError: nothing there.
        """
        try:
            document, arrays = reading.read(Path(path))
            claim, method = document["claim"], document["method"]
            return cls(
                topic=str(document["topic"]),
                claim=Claim(
                    kind=claim["kind"],
                    statement=claim["statement"],
                    numbers={str(k): float(v) for k, v in claim["numbers"].items()},
                    bounds=tuple((str(m), d, float(v)) for m, d, v in claim["bounds"]),
                ),
                method=method["kind"],
                confidence=method["confidence"],
                system=document["system"],
                domain=str(document["domain"]),
                arrays=arrays,
                assumptions=tuple(map(str, document["assumptions"])),
                not_covered=tuple(map(str, document["not_covered"])),
                provenance=dict(document["provenance"]),
            )
        except reading.Malformed as reason:
            raise MalformedFile(str(reason)) from None
        except (KeyError, TypeError, ValueError, AttributeError) as reason:
            raise MalformedFile(f"{path}: {reason}") from None

    def verify(self) -> tuple[str, ...]:
        """What is wrong with it, by `palestra.certificates.verify`; empty where all holds."""
        from .verify import problems

        return problems(self.document(), dict(self.arrays))

    def __str__(self) -> str:
        lines = [self.claim.kind.upper(), self.claim.statement, ""]
        lines += [f"  {name} = {value:.6g}" for name, value in self.claim.numbers.items()]
        lines += [f"  every episode: {m} {d} {v:g}" for m, d, v in self.claim.bounds]
        sure = "" if self.confidence is None else f", confidence {self.confidence:g}"
        lines += ["", f"shown by: {self.method}{sure}", f"where: {self.domain}"]
        for head, items in (("assumes", self.assumptions), ("says nothing of", self.not_covered)):
            lines += [f"{head}: {item}" for item in items]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{html.escape(name)}</td><td>{value:.6g}</td></tr>"
            for name, value in self.claim.numbers.items()
        )
        listed = "".join(f"<li>{html.escape(item)}</li>" for item in self.not_covered)
        return (
            f"<p><b>{html.escape(self.claim.kind)}</b>: {html.escape(self.claim.statement)}</p>"
            f"<table>{rows}</table><p>Shown by {html.escape(self.method)}; "
            f"{html.escape(self.domain)}. It says nothing of:</p><ul>{listed}</ul>"
        )
