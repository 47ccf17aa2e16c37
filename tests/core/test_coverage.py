"""What a nominal 95 % is worth, by simulation: the table of docs/statistics.md is measured here.

At least 93 % wherever a number is shown, or the page says for which data it is less, in bold.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import scipy.stats

from palestra.stats import (
    Interval,
    episodes_mean,
    optimality_gap,
    paired_difference,
    performance_profile,
    probability_of_improvement,
    runs_iqm,
    runs_mean,
)

PAGE = Path(__file__).parents[2] / "docs" / "statistics.md"
MIDDLES = (np.arange(20_000) + 0.5) / 20_000


def modes(rare):
    """Quantiles of two narrow modes, at 0 and at 1; the share `rare` belongs to the second."""
    x = np.linspace(-0.5, 1.5, 100_001)
    below = (1 - rare) * scipy.stats.norm.cdf(x, 0, 0.05) + rare * scipy.stats.norm.cdf(x, 1, 0.05)
    return np.interp(MIDDLES, below, x)


# 20 000 quantiles of each; a draw takes one of them at random, so that every truth is a finite sum.
DATA = {
    "normal": scipy.stats.norm.ppf(MIDDLES),
    "exponential": scipy.stats.expon.ppf(MIDDLES),
    "lognormal": scipy.stats.lognorm.ppf(MIDDLES, 1.0),
    "modes 70/30": modes(0.3),
    "modes 90/10": modes(0.1),
}


class Rule(NamedTuple):
    """How often it is tried, how many numbers it takes, the truth of a population, the interval."""

    repetitions: int
    size: int
    truth: Callable[[np.ndarray], float]
    interval: Callable[[np.ndarray], Interval]


def tasks(x, number, scales=None):
    parts = np.split(x, number)
    return {str(k): part * (scales[k] if scales else 1) for k, part in enumerate(parts)}


def paired(x):
    """Differences of the given kind between episodes that have much in common."""
    ids = np.arange(x.size)
    common = 3 * np.sin(ids)
    return paired_difference(common + x, common, a_episodes=ids, b_episodes=ids).difference


def middle(q):
    return q[q.size // 4 : 3 * q.size // 4].mean()


def improvement(n):
    """The better of two algorithms, by a standard deviation, comes first."""

    def truth(q):
        thinned = q[10::20]
        return np.mean(thinned[:, None] + q.std() > thinned[None, :])

    return truth, lambda x: probability_of_improvement(x[:n], x[n:])


def profile(number):
    def interval(x):
        found = performance_profile(tasks(x, number), [0.5])
        return Interval(0.0, found.low[0], found.high[0], 0.95, found.rule, found.n)

    return Rule(2000, 10 * number, lambda q: np.mean(q > 0.5), interval)


FEW, MANY = 2000, 10_000
SCALES = (1, 5, 1)


def measure(rule, quantiles, shift=0.0):
    random = np.random.default_rng(20)
    truth = rule.truth(quantiles)
    shown = covered = 0
    for _ in range(rule.repetitions):
        x = quantiles[random.integers(0, quantiles.size, rule.size)]
        x[: rule.size // 2] += shift
        interval = rule.interval(x)
        if interval.low is not None:
            shown += 1
            covered += interval.low <= truth <= interval.high
    return 100 * covered / shown


def mean_of(n):
    return Rule(MANY, n, np.mean, runs_mean)


RULES = {
    "mean, 64 episodes": Rule(MANY, 64, np.mean, episodes_mean),
    "mean, 256 episodes": Rule(MANY, 256, np.mean, episodes_mean),
    "mean, 1000 episodes": Rule(MANY, 1000, np.mean, episodes_mean),
    "paired difference, 64 episodes": Rule(MANY, 64, np.mean, paired),
    "mean, 5 runs": mean_of(5),
    "mean, 7 runs": mean_of(7),
    "mean, 9 runs": mean_of(9),
    "mean, 10 runs": mean_of(10),
    "mean, 20 runs": mean_of(20),
    "mean, 30 runs": mean_of(30),
    "mean, 50 runs": mean_of(50),
    "mean, 3 tasks of 5 runs": Rule(
        MANY, 15, lambda q: q.mean() * sum(SCALES) / 3, lambda x: runs_mean(tasks(x, 3, SCALES))
    ),
    "mean, 3 tasks of 10 runs": Rule(
        MANY, 30, lambda q: q.mean() * sum(SCALES) / 3, lambda x: runs_mean(tasks(x, 3, SCALES))
    ),
    "optimality gap, 10 runs": Rule(
        MANY, 10, lambda q: np.maximum(0.5 - q, 0).mean(), lambda x: optimality_gap(x, 0.5)
    ),
    "interquartile mean, 10 runs": Rule(FEW, 10, middle, lambda x: runs_iqm(x, resamples=1000)),
    "interquartile mean, 30 runs": Rule(FEW, 30, middle, lambda x: runs_iqm(x, resamples=1000)),
    "interquartile mean, 3 tasks of 10 runs": Rule(
        FEW, 30, middle, lambda x: runs_iqm(tasks(x, 3), resamples=1000)
    ),
    "probability of improvement, 5 runs": Rule(FEW, 10, *improvement(5)),
    "probability of improvement, 10 runs": Rule(FEW, 20, *improvement(10)),
    "probability of improvement, 20 runs": Rule(FEW, 40, *improvement(20)),
    "performance profile, 10 runs": profile(1),
    "performance profile, 3 tasks of 10 runs": profile(3),
}


def measured(name, data):
    quantiles = DATA[data]
    shift = quantiles.std() if "improvement" in name else 0.0
    return measure(RULES[name], quantiles, shift)


def documented():
    """Cells of the table in the page: for each rule and kind of data the text, such as `94.8`."""
    lines = [line.strip("| \n").split(" | ") for line in PAGE.read_text().splitlines()]
    (head,) = [k for k, cells in enumerate(lines) if cells[1:] == list(DATA)]
    found = {}
    for cells in lines[head + 2 :]:
        if len(cells) != len(DATA) + 1:
            break
        found |= {(cells[0], data): cell for data, cell in zip(DATA, cells[1:], strict=True)}
    return found


def test_the_page_has_every_rule_and_says_in_bold_where_one_falls_short():
    cells = documented()
    assert list(cells) == [(name, data) for name in RULES for data in DATA]
    for cell in cells.values():
        short = float(cell.strip("*")) < 93
        assert re.fullmatch(r"\*\*\d\d\.\d\*\*" if short else r"\d\d\.\d|100\.0", cell)


def test_no_rule_falls_short_on_normal_data_and_no_rule_for_episodes_or_ranks_on_any():
    ranks = ("interquartile", "probability", "performance")
    for (name, data), cell in documented().items():
        if data == "normal" or "episodes" in name or name.startswith(ranks):
            assert "*" not in cell, (name, data)


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_the_coverage_is_what_the_page_says(name):
    """The same draws as when the page was written; half a point for another machine's rounding."""
    cells = documented()
    for data in DATA:
        assert measured(name, data) == pytest.approx(float(cells[name, data].strip("*")), abs=0.5)


def test_the_plain_percentile_bootstrap_would_not_have_covered():
    """Why there is a rule at all: 83 % at five runs, seen by the same simulation."""

    def percentile(x):
        means = x[np.random.default_rng(0).integers(0, 5, (500, 5))].mean(axis=1)
        low, high = np.quantile(means, [0.025, 0.975])
        return Interval(float(x.mean()), float(low), float(high), 0.95, "percentile", 5)

    share = measure(Rule(1500, 5, np.mean, percentile), DATA["normal"])
    assert share == pytest.approx(83, abs=3)


@pytest.mark.parametrize("n", [5, 10, 30])
@pytest.mark.parametrize("threshold", [-1.0, 0.0, 1.0])
def test_the_band_of_a_performance_profile_covers(n, threshold):
    """Of standard normal scores the fraction above a threshold is Phi(-threshold)."""
    truth, random = scipy.stats.norm.sf(threshold), np.random.default_rng(21)
    covered = shown = 0
    for _ in range(1500):
        profile = performance_profile(random.normal(size=n), [threshold])
        if np.isfinite(profile.low[0]):
            shown += 1
            covered += profile.low[0] <= truth <= profile.high[0]
    assert shown == 0 or covered / shown >= 0.93


if __name__ == "__main__":  # writes the rows of the table
    for rule in RULES:
        numbers = [f"{measured(rule, data):.1f}" for data in DATA]
        bold = [f"**{n}**" if float(n) < 93 else n for n in numbers]
        print("| " + " | ".join([rule, *bold]) + " |", flush=True)
