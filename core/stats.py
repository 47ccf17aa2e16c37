"""Intervals that cover what they say, and comparisons that do not mix two kinds of chance.

Two levels, never pooled, hence two families of functions:

- *Episodes* answer "what does this policy do": one policy, many episodes. `episodes_mean`,
  `success_rate`, and, for two policies on the same episodes, `paired_difference`.
- *Training runs* answer "what does this algorithm do": one score a run. `runs_mean`, `runs_iqm`,
  `probability_of_improvement`, `performance_profile`; several tasks are strata.

Which rule gives the interval depends on the number of observations, because a rule that does not
cover is worse than none. docs/statistics.md has the measured coverage of each rule, and a slow test
(tests/core/test_coverage.py) measures it again.

- Means have Student's t interval on a scale without skewness (P. Hall, "On the removal of skewness
  by transformation", Journal of the Royal Statistical Society B 54 (1992) 221-228): below 5 runs,
  and below 64 episodes, points only. It is the plain t interval where the data are symmetric, and
  covers much better where they are not. The percentile bootstrap covers 73 % at 3 and 83 % at 5
  normal observations where it promises 95 %; the studentised bootstrap covers as well as Hall's
  interval, but has no end where a resample does not vary.
- The interquartile mean has a stratified bootstrap from 10 runs on, whose percentiles are widened
  by the factor that small samples need (T. C. Hesterberg, "What teachers should know about the
  bootstrap", The American Statistician 69 (2015) 371-386, section 3.2).

What no rule can do: say something about values that it has not seen. A mode that 30 % of the runs
belong to is missing among 5 runs in 17 % of all cases, and the interval is then too short.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Scores = ArrayLike | Mapping[str, ArrayLike]

RUNS_FOR_MEAN = 5
RUNS_FOR_IQM = 10
EPISODES_FOR_MEAN = 64
ONE_SIDED_FROM = 100
CORRECTED_T = "t, corrected for skewness"
RESAMPLES = 5000


@dataclass(frozen=True)
class Interval:
    """An estimate and how far it can be trusted.

    `low` and `high` are None where no rule covers; `rule` says which was used, or why none.
    `n` is the number of independent observations: episodes, or training runs.
    """

    estimate: float
    low: float | None
    high: float | None
    level: float
    rule: str
    n: int

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.estimate:.4g} ({self.rule})"
        return f"{self.estimate:.4g} [{self.low:.4g}, {self.high:.4g}]"


@dataclass(frozen=True)
class PairedDifference:
    """Policy a minus policy b on the same episodes.

    `variance_ratio` is the variance of the difference of two independent episodes over that of a
    pair: how many times as many episodes an unpaired comparison would need. It and `correlation`
    are None where a variance is zero.
    """

    difference: Interval
    correlation: float | None
    variance_ratio: float | None


@dataclass(frozen=True)
class PerformanceProfile:
    """For each threshold the fraction of runs that score more; arrays (n_thresholds,)."""

    thresholds: Floats
    fractions: Floats
    low: Floats
    high: Floats
    level: float
    rule: str
    n: int


# ---------------------------------------------------------------------------------------- episodes


def mean_interval(x: ArrayLike, level: float = 0.95, *, at_least: int = RUNS_FOR_MEAN) -> Interval:
    """Interval for the mean of independent observations: Student's t, corrected for skewness.

    Args:
        x: shape (n,).
        level: nominal coverage.
        at_least: with fewer observations only the point is given; 5 or more.

    Raises:
        ValueError: an empty, non-finite or many-dimensional `x`.
    """
    values = _sample(x, "x")
    _check_level(level)
    if at_least < RUNS_FOR_MEAN:
        raise ValueError(f"at_least={at_least}: {RUNS_FOR_MEAN} or more; fewer show no interval")
    n, mean = values.size, float(values.mean())
    if n < at_least:
        return Interval(mean, None, None, level, f"no interval below {at_least}", n)
    low, high = _corrected_t([values], level)
    return Interval(mean, low, high, level, CORRECTED_T, n)


def episodes_mean(x: ArrayLike, level: float = 0.95) -> Interval:
    """Mean over the episodes of one policy, `x` of shape (n_episodes,). See `mean_interval`.

    Points only below 64 episodes: they are cheap, and with fewer no rule covers skewed returns. It
    says what this one policy does; nothing about another training run of its algorithm.
    """
    return mean_interval(x, level, at_least=EPISODES_FOR_MEAN)


def success_rate(k: int, n: int, level: float = 0.95) -> Interval:
    """Rate of `k` successes in `n` independent episodes, by Clopper and Pearson (1934).

    Exact: it never covers less than `level`, with one exception. Where nothing or everything of 100
    or more episodes succeeded, the interval is one-sided, which for 0 of 300 gives an upper bound
    of 0.00994 (the rule of three: 3 / n). Stating whichever of the two applies covers at least
    93.8 % where it promises 95 %; with fewer than 100 episodes it could fall to 92.5 %.
    """
    _check_level(level)
    if n < 1 or not 0 <= k <= n:
        raise ValueError(f"k={k}, n={n}: 0 <= k <= n and n >= 1 are needed")
    if k in (0, n) and n >= ONE_SIDED_FROM:
        bound = (1 - level) ** (1 / n)
        low, high = (0.0, 1 - bound) if k == 0 else (bound, 1.0)
        return Interval(k / n, low, high, level, "Clopper-Pearson, one-sided", n)
    from scipy.special import betaincinv

    tail = (1 - level) / 2
    low = 0.0 if k == 0 else float(betaincinv(k, n - k + 1, tail))
    high = 1.0 if k == n else float(betaincinv(k + 1, n - k, 1 - tail))
    return Interval(k / n, low, high, level, "Clopper-Pearson", n)


def paired_difference(
    a: ArrayLike,
    b: ArrayLike,
    *,
    a_episodes: Sequence[int] | NDArray[np.integer],
    b_episodes: Sequence[int] | NDArray[np.integer],
    level: float = 0.95,
) -> PairedDifference:
    """Mean of a - b over the same episodes of two policies, all arrays of shape (n,).

    Episodes are matched by their ids, in whatever order they stand. Raises ValueError if an id
    stands twice or if the two sets of ids differ: a comparison on other episodes is no comparison.
    The interval is that of `episodes_mean`: points only below 64 pairs.
    """
    values_a, ids_a = _by_episode(a, a_episodes, "a")
    values_b, ids_b = _by_episode(b, b_episodes, "b")
    if not np.array_equal(ids_a, ids_b):
        only = [np.setdiff1d(ids_a, ids_b), np.setdiff1d(ids_b, ids_a)]
        said = [f"{len(o)} only in {name} ({_some(o)})" for o, name in zip(only, "ab", strict=True)]
        raise ValueError(f"a and b are not of the same episodes: {', '.join(said)}")
    difference = values_a - values_b
    n = difference.size
    correlation = ratio = None
    if n > 1:
        var_a, var_b, var_d = (float(np.var(v, ddof=1)) for v in (values_a, values_b, difference))
        if var_a > 0 and var_b > 0:
            correlation = float(np.corrcoef(values_a, values_b)[0, 1])
        if var_d > 0:
            ratio = (var_a + var_b) / var_d
    return PairedDifference(episodes_mean(difference, level), correlation, ratio)


# ----------------------------------------------------------------------------------- training runs


def iqm(x: ArrayLike) -> float:
    """Interquartile mean: the mean of the middle half of `x`, whatever its shape.

    Observations that a quartile cuts count with the fraction that lies inside. So it is exact for
    every n, equals `scipy.stats.trim_mean(x, 0.25)` where n is divisible by 4, and depends
    continuously on n, which trimming whole observations does not.
    """
    values = np.sort(_sample(np.ravel(np.asarray(x, dtype=np.float64)), "x"))
    weights = _middle_half(values.size)
    return float(values @ weights)


def runs_mean(scores: Scores, level: float = 0.95) -> Interval:
    """Mean score of an algorithm; the unit is the training run.

    Args:
        scores: one score a run, shape (n_runs,); or a mapping task -> (n_runs,). Tasks weigh
            equally, and chance is between the runs of a task only.
        level: nominal coverage.

    The task with the fewest runs decides: below 5 points only. The degrees of freedom over several
    tasks are those of Welch and Satterthwaite.
    """
    strata = _strata(scores, "scores")
    _check_level(level)
    n = sum(s.size for s in strata)
    mean = float(np.mean([s.mean() for s in strata]))
    if min(s.size for s in strata) < RUNS_FOR_MEAN:
        return _points_only(mean, level, RUNS_FOR_MEAN, n)
    low, high = _corrected_t(strata, level)
    return Interval(mean, low, high, level, CORRECTED_T, n)


def optimality_gap(scores: Scores, target: float = 1.0, level: float = 0.95) -> Interval:
    """How far runs stay below a target on average; what lies above it makes up for nothing.

    The mean of max(target - score, 0) over the runs of a task, then over tasks (Agarwal et al.,
    NeurIPS 2021). Scores, tasks and interval as for `runs_mean`; with scores on the scale of the
    anchors the target 1 is the bound. No interval where every run reaches the target: nothing
    shows then how far another one would stay below.
    """
    if not np.isfinite(target):
        raise ValueError(f"target={target}: a finite number")
    strata = _strata(scores, "scores")
    short = {str(task): np.maximum(target - runs, 0.0) for task, runs in enumerate(strata)}
    gap = runs_mean(short, level)
    if gap.low is not None and gap.estimate == 0.0:
        return Interval(0.0, None, None, level, "no interval: every run reaches the target", gap.n)
    return gap


def runs_iqm(
    scores: Scores, level: float = 0.95, *, seed: int = 0, resamples: int = RESAMPLES
) -> Interval:
    """Interquartile mean over all runs of all tasks (Agarwal et al., NeurIPS 2021); see `iqm`.

    Args:
        scores: as for `runs_mean`; of several tasks they must be normalised to one scale.
        level: nominal coverage.
        seed: of the bootstrap.
        resamples: of the bootstrap.

    Points only below 10 runs a task: there is no rule for so few that covers.
    """
    strata = _strata(scores, "scores")
    _check_level(level)
    n = sum(s.size for s in strata)
    estimate = iqm(np.concatenate(strata))
    if min(s.size for s in strata) < RUNS_FOR_IQM:
        return _points_only(estimate, level, RUNS_FOR_IQM, n)
    weights = _middle_half(n)

    def iqms(resampled: list[Floats]) -> Floats:
        return np.sort(np.concatenate(resampled, axis=1), axis=1) @ weights

    low, high = _stratified_bootstrap(strata, iqms, level, seed, resamples)
    return Interval(estimate, low, high, level, "stratified bootstrap", n)


def probability_of_improvement(a: Scores, b: Scores, level: float = 0.95) -> Interval:
    """How likely a run of a scores more than one of b, averaged over tasks; ties count half.

    Scores as for `runs_mean`; both need the same tasks. In each task this is the statistic of Mann
    and Whitney over its maximum, with the variance of DeLong, DeLong and Clarke-Pearson
    (Biometrics 44 (1988) 837-845) and a t interval on the scale log(p / (1 - p)), on which it is
    close to normal; the bootstrap covers 90 % here for p near 1. Points only below 5 runs a task,
    and where the runs of a and b do not overlap at all: nothing shows then how much they vary.
    """
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        if a.keys() != b.keys():
            raise ValueError(f"a has the tasks {sorted(a)}, b {sorted(b)}: both need the same")
        b = {task: b[task] for task in a}
    elif isinstance(a, Mapping) or isinstance(b, Mapping):
        raise ValueError("a and b: tasks must be named in both or in neither")
    strata_a, strata_b = _strata(a, "a"), _strata(b, "b")
    _check_level(level)
    both = [*strata_a, *strata_b]
    n = sum(s.size for s in both)
    # Of each run the share of the other algorithm's runs that it beats, or is beaten by.
    placements = []
    for x, y in zip(strata_a, strata_b, strict=True):
        above = (x[:, None] > y[None, :]) + 0.5 * (x[:, None] == y[None, :])
        placements += [above.mean(axis=1), above.mean(axis=0)]
    estimate = float(np.mean([p.mean() for p in placements[::2]]))
    if min(s.size for s in both) < RUNS_FOR_MEAN:
        return _points_only(estimate, level, RUNS_FOR_MEAN, n)
    error, _, freedom = _standard_error(placements)
    error *= 2  # of the sum of two means in each task, not of their mean
    if error == 0.0 or estimate in (0.0, 1.0):
        return Interval(estimate, None, None, level, "no interval: the runs do not overlap", n)
    logit = np.log(estimate / (1 - estimate))
    half = _t(level, freedom) * error / (estimate * (1 - estimate))
    low, high = (float(1 / (1 + np.exp(-end))) for end in (logit - half, logit + half))
    return Interval(estimate, low, high, level, "t of the log odds", n)


def performance_profile(
    scores: Scores, thresholds: ArrayLike, level: float = 0.95
) -> PerformanceProfile:
    """For each threshold the fraction of runs that score more (Dolan and More 2002).

    Scores as for `runs_mean`, with equally many runs in each task. The bands are Clopper-Pearson's,
    for each threshold by itself. With several tasks they are wider than they need be: successes in
    tasks of unequal difficulty vary less than a binomial (W. Hoeffding 1956).
    """
    strata = _strata(scores, "scores")
    if len({s.size for s in strata}) > 1:
        raise ValueError(f"scores: equally many runs a task, not {[s.size for s in strata]}")
    at = _sample(thresholds, "thresholds")
    runs = np.concatenate(strata)
    above = (runs[None, :] > at[:, None]).sum(axis=1)
    rates = [success_rate(int(k), runs.size, level) for k in above]
    low, high = (np.array([getattr(r, end) for r in rates]) for end in ("low", "high"))
    return PerformanceProfile(
        at, above / runs.size, low, high, level, "Clopper-Pearson, pointwise", runs.size
    )


# ------------------------------------------------------------------------------------------- rules


def _points_only(estimate: float, level: float, below: int, n: int) -> Interval:
    return Interval(estimate, None, None, level, f"no interval below {below} runs", n)


def _t(level: float, freedom: float) -> float:
    """Upper quantile of Student's t for a two-sided interval."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + level) / 2))


def _middle_half(n: int) -> Floats:
    """Weights of n sorted observations in their interquartile mean; the sum is 1."""
    left = np.arange(n)
    inside = np.minimum(left + 1, 0.75 * n) - np.maximum(left, 0.25 * n)
    weights: Floats = np.clip(inside, 0.0, None) / (0.5 * n)
    return weights


def _standard_error(strata: Sequence[Floats]) -> tuple[float, float, float]:
    """Of the mean of the strata's means: unbiased, as the bootstrap sees it, degrees of freedom.

    The bootstrap draws from n observations as if they were the population, so that its variance is
    smaller by (n - 1) / n. Degrees of freedom after Welch (1947) and Satterthwaite (1946).
    """
    parts = np.array([s.var(ddof=1) / s.size for s in strata]) / len(strata) ** 2
    sizes = np.array([s.size for s in strata])
    total = float(parts.sum())
    if total == 0.0:
        return 0.0, 0.0, float((sizes - 1).sum())
    seen = float((parts * (sizes - 1) / sizes).sum())
    freedom = total**2 / float((parts**2 / (sizes - 1)).sum())
    return total**0.5, seen**0.5, freedom


def _corrected_t(strata: Sequence[Floats], level: float) -> tuple[float, float]:
    """Ends of an interval for the mean of the strata's means.

    With T = (estimate - truth) / error and a the skewness of the estimate, Hall's
    g(T) = T + a T^2 / 3 + a^2 T^3 / 27 + a / 6 is nearly symmetric. It grows throughout, so that
    its quantiles, taken to be Student's, are turned into those of T.
    """
    mean = float(np.mean([s.mean() for s in strata]))
    error, _, freedom = _standard_error(strata)
    if error == 0.0:
        return mean, mean
    third = [
        float(((s - s.mean()) ** 3).mean()) / s.size**2 * (s.size / (s.size - 1)) ** 1.5
        for s in strata
    ]
    skewness = sum(third) / (len(strata) * error) ** 3
    quantile = _t(level, freedom)
    return (
        mean - error * _skewed(quantile, skewness),
        mean - error * _skewed(-quantile, skewness),
    )


def _skewed(quantile: float, skewness: float) -> float:
    """Solve g(T) = quantile for T; see `_corrected_t`."""
    if skewness == 0.0:
        return quantile
    inside = skewness * (quantile - skewness / 6)
    if abs(inside) < 0.5:  # the root of 1 + inside, less 1, without losing digits
        return 3 / skewness * math.expm1(math.log1p(inside) / 3)
    return 3 / skewness * (math.cbrt(1 + inside) - 1)


def _stratified_bootstrap(
    strata: Sequence[Floats],
    statistic: Callable[[list[Floats]], Floats],
    level: float,
    seed: int,
    resamples: int,
) -> tuple[float, float]:
    """Percentile interval with Hesterberg's expanded percentiles.

    `statistic` takes one array (resamples, n_runs) a stratum and gives (resamples,). The normal
    quantile at which a percentile interval would be read off is replaced by t's, times the root of
    n / (n - 1) by which the bootstrap's spread is too small.
    """
    from scipy.special import ndtr

    random = np.random.default_rng(seed)
    values = []
    for start in range(0, resamples, 500):  # bounds the memory
        rows = min(500, resamples - start)
        drawn = [s[random.integers(0, s.size, (rows, s.size))] for s in strata]
        values.append(statistic(drawn))
    unbiased, seen, freedom = _standard_error(strata)
    widening = unbiased / seen if seen > 0 else 1.0
    tail = float(ndtr(-_t(level, freedom) * widening))
    low, high = np.quantile(np.concatenate(values), [tail, 1 - tail])
    return float(low), float(high)


# ------------------------------------------------------------------------------------------- input


def _check_level(level: float) -> None:
    if not 0.5 <= level < 1:
        raise ValueError(f"level={level}: from 0.5 to below 1")


def _sample(x: ArrayLike, name: str) -> Floats:
    values = np.asarray(x, dtype=np.float64)
    if values.ndim != 1 or values.size == 0:
        raise ValueError(f"{name} has shape {values.shape}: one dimension, not empty")
    if not np.isfinite(values).all():
        where = int(np.flatnonzero(~np.isfinite(values))[0])
        raise ValueError(f"{name}[{where}] is {values[where]}: finite numbers only")
    return values


def _strata(scores: Scores, name: str) -> list[Floats]:
    if not isinstance(scores, Mapping):
        return [_sample(scores, name)]
    if not scores:
        raise ValueError(f"{name}: no task")
    return [_sample(runs, f"{name}[{task!r}]") for task, runs in scores.items()]


def _by_episode(
    x: ArrayLike, episodes: Sequence[int] | NDArray[np.integer], name: str
) -> tuple[Floats, NDArray[np.integer]]:
    """Values in order of their episode ids, and the ids."""
    values, ids = _sample(x, name), np.asarray(episodes)
    if ids.shape != values.shape or not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(f"{name}_episodes: one whole number for each of the {values.size} values")
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    if (ids[1:] == ids[:-1]).any():
        twice = int(ids[:-1][ids[1:] == ids[:-1]][0])
        raise ValueError(f"{name}_episodes: episode {twice} stands twice")
    return values[order], ids


def _some(ids: NDArray[np.integer]) -> str:
    shown = ", ".join(str(i) for i in ids[:3])
    return f"{shown}, ..." if len(ids) > 3 else shown or "none"
