"""Certificates of what a pulse list does: how long it takes against the least time, its energy."""

from __future__ import annotations

from typing import Any

import numpy as np

from palestra.envs.nmr.bloch import Ensemble
from palestra.envs.nmr.events import EventList
from palestra.envs.nmr.information import energy_balance, received_energy
from palestra.spaces import Array

from .check.nmr import COLUMNS
from .files import Certificate, Claim

ASSUMPTIONS = (
    "the Bloch equations with the stored relaxation times, offsets and transmit fields",
    "white noise of the stored density; T1, T2 and the fields are known",
    "the sample is at thermal equilibrium when the list begins",
)
NOT_COVERED = (
    "instruments: imperfect pulses beyond the stored fields, drift, radiation damping, diffusion",
    "measurements in which T1 and T2 must be estimated too; they take longer",
    "other samples and other magnets than the stored ones",
)


def time_bound_certificate(
    events: EventList, ensemble: Ensemble, N0: float, **provenance: Any
) -> Certificate:
    """How long a pulse list takes against the least time in which its precision can be reached.

    Args:
        events: of hard pulses, from equilibrium.
        ensemble: the isochromats of one experiment.
        N0: noise density, s, for M0 = 1.
        provenance: who made it, when, with what.

    Raises:
        ValueError: more than one experiment; a finite pulse; a list that receives nothing; N0 not
            above 0.
    """
    if not N0 > 0:
        raise ValueError(f"N0: got {N0!r}, allowed a noise density above 0, s")
    arrays = _arrays(events, ensemble)
    energy, duration = received_energy(events, ensemble), events.duration
    if not energy > 0:
        raise ValueError("events: the list receives nothing, so it measures nothing")
    at_once = float((arrays["receive"] / arrays["R2"]).sum()) / 2
    per_second = float((arrays["receive"] * arrays["R1"] / arrays["R2"]).sum()) / 4
    error = float(np.sqrt(N0 / energy))
    bound = max(0.0, (N0 / error**2 - at_once) / per_second)
    numbers = {
        "duration": duration,
        "energy": energy,
        "relative_error": error,
        "time_bound": bound,
        "efficiency": bound / duration,
    }
    claim = Claim(
        "time bound",
        f"This pulse list measures the abundance to a relative error of {error:.4g} in "
        f"{duration:.4g} s; no pulse sequence does so in less than {bound:.4g} s.",
        numbers,
        (("efficiency", "<=", 1.0),),
    )
    return _certificate(claim, {"N0": float(N0)}, arrays, provenance)


def energy_budget_certificate(
    events: EventList, ensemble: Ensemble, **provenance: Any
) -> Certificate:
    """That a pulse list does no work: what relaxation gives and takes accounts for everything.

    Args:
        events: of hard pulses, from equilibrium.
        ensemble: the isochromats of one experiment.
        provenance: who made it, when, with what.

    Raises:
        ValueError: more than one experiment, or a finite pulse.
    """
    arrays = _arrays(events, ensemble)
    balance = energy_balance(events, ensemble)
    numbers = {
        name: float(getattr(balance, name) @ arrays["receive"])
        for name in ("lost", "transverse", "longitudinal")
    }
    claim = Claim(
        "energy budget",
        "Along this pulse list (|M(0)|^2 - |M(T)|^2) / 2 is what transverse relaxation takes less "
        "what longitudinal relaxation gives, in every isochromat: pulses do no work.",
        numbers | {"duration": events.duration},
    )
    return _certificate(claim, {}, arrays, provenance)


def _certificate(
    claim: Claim, system: dict[str, Any], arrays: dict[str, Array], provenance: dict[str, Any]
) -> Certificate:
    spins = arrays["offset_hz"].size
    return Certificate(
        topic="nmr",
        claim=claim,
        method="closed form",
        system={"model": "Bloch equations of independent isochromats, M0 = 1", **system},
        domain=f"the {len(arrays['events'])} events and {spins} isochromats in the file",
        arrays=arrays,
        assumptions=ASSUMPTIONS,
        not_covered=NOT_COVERED,
        provenance=provenance,
    )


def _arrays(events: EventList, ensemble: Ensemble) -> dict[str, Array]:
    if ensemble.shape[0] != 1:
        raise ValueError(f"ensemble: got {ensemble.shape[0]} rows, allowed 1")
    rows = np.zeros((len(events), len(COLUMNS)))
    for k, event in enumerate(events):
        r = event.receive
        window = (r.first, r.dwell, float(r.samples), r.phase) if r else (0.0, 0.0, 0.0, 0.0)
        rows[k] = (
            event.theta, event.phi, event.t_pulse, event.tau, *window, float(event.spoil)
        )  # fmt: skip
    return {
        "events": rows,
        "offset_hz": ensemble.offset_hz[0].astype(np.float64),
        "b1": ensemble.b1[0].astype(np.float64),
        "R1": ensemble.rate_of_isochromat(ensemble.R1)[0].copy(),
        "R2": ensemble.rate_of_isochromat(ensemble.R2)[0].copy(),
        "receive": ensemble.receive[0].astype(np.float64),
    }
