"""Measurements of a known sample, simulated by the Bloch equations, for these tests."""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from palestra.envs.nmr.bloch import Ensemble
from palestra.envs.nmr.events import Event, EventList, Receive, run
from palestra.envs.nmr.pulses import cpmg
from palestra.envs.nmr.readers import Measurement

NINETY = math.pi / 2
PHASE = np.exp(0.7j)  # of the receiver
EFFICIENCY = -math.cos(math.radians(172.0))  # of an inversion by 172 degrees


def spread(T1, T2, fwhm_hz, shift_hz, shape, n=801) -> Ensemble:
    """Equispaced offsets weighted by their density, too close for any revival."""
    if shape == "gaussian":
        sd = fwhm_hz / math.sqrt(8 * math.log(2))
        offset = np.linspace(-6 * sd, 6 * sd, n)
        weight = np.exp(-0.5 * (offset / sd) ** 2)
    else:
        n = 8001
        offset = np.linspace(-400 * fwhm_hz, 400 * fwhm_hz, n)
        weight = 1.0 / (1.0 + (2 * offset / fwhm_hz) ** 2)
    weight /= weight.sum()
    return Ensemble(
        offset_hz=(offset + shift_hz)[np.newaxis],
        b1=np.ones((1, n)),
        R1=np.array([[1 / T1]]),
        R2=np.array([[1 / T2]]),
        blocks=np.array([0, n]),
        weight=weight,
        receive=weight[np.newaxis],
    )


@cache
def clean(T1, T2, fwhm_hz, shift_hz=3.0, shape="gaussian", dwell=2e-4, te=None):
    """Times and samples of inversion recovery, echo train and FID, without noise."""
    spins = spread(T1, T2, fwhm_hz, shift_hz, shape)
    delays = np.geomspace(0.03 * T1, 5 * T1, 16)
    window = Receive(0.0, 1.0, 1)
    recovery = []
    for delay in delays:
        inversion = Event(math.radians(172.0), tau=float(delay), spoil=True)
        events = EventList((inversion, Event(NINETY, tau=0.0, receive=window)))
        recovery.append(run(events, spins).signal[0])
    te = te or T2 / 20
    train = cpmg(te, 60, 0.0, te / 4, te / 4)
    echoes = []
    for k in range(1, 61):  # the echo stands at the end of the half spacing after its pulse
        events = EventList((*train.events[: 1 + k],))
        last = events[len(events) - 1]
        half = Event(last.theta, last.phi, tau=te / 2, receive=Receive(te / 2, 1.0, 1))
        echoes.append(run(EventList((*_silent(events.events[:-1]), half)), spins).signal[0])
    points = int(min(6 * T2, 8 / (math.pi * fwhm_hz)) / dwell)
    fid = run(
        EventList((Event(NINETY, tau=points * dwell, receive=Receive(0, dwell, points)),)), spins
    )
    return (
        (delays, np.array(recovery)),
        (te * np.arange(1, 61), np.array(echoes)),
        (dwell * np.arange(points), fid.signal),
    )


def _silent(events):
    return tuple(Event(e.theta, e.phi, tau=e.tau) for e in events)


def measured(sigma: float, seed: int, *sample, complex_values: bool = True, **options):
    """Inversion recovery, echo train and FID of one sample, with noise, phase and gain."""
    random = np.random.default_rng(seed)
    found = []
    for kind, (times, values) in zip(("ir", "cpmg", "fid"), clean(*sample, **options), strict=True):
        noise = random.normal(size=times.size) + 1j * random.normal(size=times.size)
        values = 50.0 * (1j * values * PHASE + sigma * noise)
        imaginary = complex_values or kind == "fid"
        if not imaginary:
            values = (values / PHASE).real.astype(complex)
        found.append(Measurement(kind, times, values, imaginary, f"{kind}.csv", "0" * 64))
    return found
