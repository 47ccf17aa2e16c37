"""Intervals against SciPy and against closed forms; test_coverage.py has what they promise."""

import subprocess
import sys

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from palestra.stats import (
    Interval,
    episodes_mean,
    iqm,
    mean_interval,
    optimality_gap,
    paired_difference,
    performance_profile,
    probability_of_improvement,
    runs_iqm,
    runs_mean,
    success_rate,
)

# Returns of ten runs on each of two tasks, written down once.
TASKS = {
    "reach": [0.81, 0.77, 0.92, 0.64, 0.88, 0.79, 0.90, 0.71, 0.85, 0.83],
    "push": [0.31, 0.55, 0.12, 0.47, 0.40, 0.29, 0.61, 0.38, 0.44, 0.35],
}


def bounds(interval: Interval) -> tuple[float, float]:
    assert interval.low is not None
    assert interval.high is not None
    return interval.low, interval.high


# -------------------------------------------------------------------------- interquartile mean


def test_iqm_of_0_to_9_is_4_5():
    assert iqm(range(10)) == 4.5
    assert iqm(np.random.default_rng(0).permutation(10).reshape(2, 5)) == 4.5


@given(st.lists(st.floats(-1e6, 1e6), min_size=4, max_size=60))
def test_iqm_is_scipys_trimmed_mean_where_n_is_divisible_by_4(x):
    x = x[: len(x) // 4 * 4]
    assert iqm(x) == pytest.approx(scipy.stats.trim_mean(x, 0.25), rel=1e-9, abs=1e-6)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 6, 7, 9, 10, 11])
def test_iqm_is_what_trimming_gives_when_each_observation_stands_four_times(n):
    """Fractional trimming, stated another way: 4 n observations can be cut exactly."""
    x = np.random.default_rng(n).normal(size=n)
    assert iqm(x) == pytest.approx(scipy.stats.trim_mean(np.repeat(x, 4), 0.25), rel=1e-12)


# ------------------------------------------------------------------------------------- success


def test_no_failure_in_300_bounds_the_failure_rate_by_0_00994():
    failures = success_rate(0, 300)
    assert (failures.estimate, failures.low) == (0.0, 0.0)
    assert failures.high == pytest.approx(1 - 0.05 ** (1 / 300), rel=1e-12)
    assert failures.high == pytest.approx(0.00994, abs=5e-6)
    successes = success_rate(300, 300)
    assert successes.low == pytest.approx(1 - 0.00994, abs=5e-6)
    assert successes.high == 1.0
    assert "one-sided" in successes.rule


@pytest.mark.parametrize(
    ("k", "n"), [(0, 9), (99, 99), (1, 2), (1, 300), (7, 20), (150, 300), (999, 1000)]
)
@pytest.mark.parametrize("level", [0.9, 0.95, 0.99])
def test_success_rate_is_scipys_exact_interval(k, n, level):
    exact = scipy.stats.binomtest(k, n).proportion_ci(level, method="exact")
    assert bounds(success_rate(k, n, level)) == pytest.approx((exact.low, exact.high), rel=1e-9)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 10, 20, 50, 99, 100, 101, 300, 1000])
def test_success_rate_covers_at_least_93_percent_whatever_the_rate(n):
    """Coverage is a finite sum here, so no simulation; at least 95 % but for one-sided ends."""
    ends = np.array([bounds(success_rate(k, n)) for k in range(n + 1)])
    rates = np.concatenate([np.linspace(0.0005, 0.9995, 2000), ends.ravel() + 1e-12])
    inside = (ends[:, :1] <= rates) & (rates <= ends[:, 1:])
    chance = scipy.stats.binom.pmf(np.arange(n + 1)[:, None], n, rates)
    coverage = (inside * chance).sum(axis=0)[(rates > 0) & (rates < 1)]
    assert coverage.min() >= (0.938 if n >= 100 else 0.95 - 1e-9)
    middle = (rates > 0.2) & (rates < 0.8)
    if n >= 20:
        assert (inside * chance).sum(axis=0)[middle].min() >= 0.95


# --------------------------------------------------------------------------------------- means


def hall(strata, low, high):
    """Hall's g at both ends of an interval for the mean of means, and its degrees of freedom."""
    sizes = np.array([len(x) for x in strata])
    variances = np.array([np.var(x, ddof=1) for x in strata]) / sizes
    moments = np.array([scipy.stats.moment(x, 3) for x in strata])
    unbiased = moments * (sizes / (sizes - 1)) ** 1.5  # as in SciPy's skew times ddof=1's spread
    a = (unbiased / sizes**2).sum() / variances.sum() ** 1.5
    error = variances.sum() ** 0.5 / len(strata)
    freedom = variances.sum() ** 2 / (variances**2 / (sizes - 1)).sum()
    t = (np.mean([np.mean(x) for x in strata]) - np.array([high, low])) / error
    return t + a * t**2 / 3 + a**2 * t**3 / 27 + a / 6, freedom


@pytest.mark.parametrize("n", [64, 200])
def test_the_mean_of_symmetric_episodes_has_scipys_t_interval(n):
    half = np.abs(np.random.default_rng(n).normal(0, 2, n // 2))
    x = 3 + np.concatenate([half, -half])
    ours = episodes_mean(x, 0.9)
    theirs = scipy.stats.ttest_1samp(x, 0).confidence_interval(0.9)
    assert ours.estimate == pytest.approx(x.mean())
    assert bounds(ours) == pytest.approx((theirs.low, theirs.high))
    assert (ours.rule, ours.n, ours.level) == ("t, corrected for skewness", n, 0.9)


@pytest.mark.parametrize("n", [5, 9, 30, 1000])
@pytest.mark.parametrize("level", [0.9, 0.95])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_ends_of_a_mean_are_students_quantiles_on_halls_scale(n, level, sign):
    x = sign * np.random.default_rng(n).lognormal(size=n)
    ends, freedom = hall([x], *bounds(mean_interval(x, level)))
    assert freedom == pytest.approx(n - 1)
    quantile = scipy.stats.t.ppf((1 + level) / 2, n - 1)
    assert ends == pytest.approx([-quantile, quantile], rel=1e-9)
    a = scipy.stats.skew(x) / n**0.5  # Hall's own notation, for one sample
    t = (x.mean() - bounds(mean_interval(x, level))[0]) / scipy.stats.sem(x)
    assert t + a * t**2 / 3 + a**2 * t**3 / 27 + a / 6 == pytest.approx(quantile, rel=1e-9)


def test_a_skewed_mean_reaches_further_to_the_side_of_its_tail():
    x = np.random.default_rng(1).lognormal(size=64)
    low, high = bounds(episodes_mean(x))
    assert high - x.mean() > 1.2 * (x.mean() - low)
    assert bounds(episodes_mean(-x)) == pytest.approx((-high, -low), rel=1e-12)


def test_episodes_need_sixty_four_and_runs_five():
    x = np.random.default_rng(2).normal(size=64)
    assert episodes_mean(x).low is not None
    assert episodes_mean(x[:63]).rule == "no interval below 64"
    ids = np.arange(64)
    pairs = paired_difference(x, x[::-1], a_episodes=ids, b_episodes=ids)
    assert pairs.difference.low is not None
    fewer = paired_difference(x[:63], x[1:], a_episodes=ids[:63], b_episodes=ids[:63])
    assert fewer.difference.low is None
    for rule in (mean_interval, runs_mean):
        four = rule([1.0, 2.0, 4.5, 3.5])
        assert (four.estimate, four.low, four.high, four.n) == (2.75, None, None, 4)
        assert "no interval below 5" in str(four)
        assert rule([1.0, 2.0, 4.5, 3.5, 4.0]).low is not None


def test_the_interquartile_mean_needs_ten_runs():
    runs = TASKS["reach"]
    assert runs_iqm(runs[:9]).low is None
    assert runs_iqm(runs).rule == "stratified bootstrap"
    assert runs_mean(runs) == mean_interval(runs)


def test_the_task_with_the_fewest_runs_decides():
    assert runs_mean({**TASKS, "slide": [0.5] * 4}).low is None
    assert runs_mean({**TASKS, "slide": [0.5, 0.4, 0.6, 0.5, 0.7]}).low is not None
    assert runs_iqm({**TASKS, "slide": [0.5, 0.4, 0.6, 0.5, 0.7]}).low is None


def test_two_tasks_have_welchs_degrees_of_freedom():
    """Where both are symmetric, it is half the difference of one from the other's negative."""
    a, b = [0.6, 0.7, 0.8, 0.9, 1.0], [0.1, 0.3, 0.3, 0.3, 0.5]
    welch = scipy.stats.ttest_ind(a, np.negative(b), equal_var=False).confidence_interval(0.95)
    ours = runs_mean({"a": a, "b": b})
    assert ours.estimate == pytest.approx((np.mean(a) + np.mean(b)) / 2)
    assert bounds(ours) == pytest.approx((welch.low / 2, welch.high / 2))
    assert ours.n == 10


def test_several_skewed_tasks_have_halls_scale_too():
    ends, freedom = hall(list(TASKS.values()), *bounds(runs_mean(TASKS)))
    quantile = scipy.stats.t.ppf(0.975, freedom)
    assert ends == pytest.approx([-quantile, quantile], rel=1e-9)


def test_the_stratified_bootstrap_is_scipys_but_for_the_widening():
    """SciPy's percentile interval at the expanded level: the same but for Monte Carlo error."""
    runs = TASKS["reach"]
    expanded = 1 - 2 * scipy.stats.norm.cdf(-scipy.stats.t.ppf(0.975, 9) * (10 / 9) ** 0.5)
    middle = np.array([0, 0, 0.5, 1, 1, 1, 1, 0.5, 0, 0]) / 5  # the interquartile mean of ten

    def iqms(x, axis):
        return np.sort(x, axis=axis) @ middle

    theirs = scipy.stats.bootstrap(
        (runs,), iqms, confidence_level=expanded, n_resamples=40_000, method="percentile",
        vectorized=True, rng=np.random.default_rng(1),
    ).confidence_interval  # fmt: skip
    assert bounds(runs_iqm(runs, resamples=40_000, seed=2)) == pytest.approx(
        (theirs.low, theirs.high), abs=0.004
    )


def test_between_task_differences_are_not_chance():
    """Two tasks far apart: pooling them would give an interval many times as wide."""
    together = runs_mean({"a": TASKS["reach"], "b": [x + 100 for x in TASKS["push"]]})
    low, high = bounds(together)
    assert high - low < 0.15
    low, high = bounds(runs_mean(TASKS["reach"] + [x + 100 for x in TASKS["push"]]))
    assert high - low > 40


def test_the_bootstrap_depends_on_its_seed_only():
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    assert runs_iqm(TASKS) == runs_iqm(TASKS)
    assert runs_iqm(TASKS, seed=1) != runs_iqm(TASKS, seed=2)
    assert np.array_equal(state, np.random.get_state()[1])  # noqa: NPY002


def test_runs_that_do_not_vary_have_an_interval_of_width_zero():
    for n in (5, 12):
        assert bounds(runs_mean([0.25] * n)) == (0.25, 0.25)
    assert bounds(runs_iqm([0.25] * 12)) == pytest.approx((0.25, 0.25))


# ---------------------------------------------------------------------------------- comparisons


def test_paired_difference_matches_episodes_by_their_ids():
    random = np.random.default_rng(3)
    common = random.normal(size=50)
    a, b = common + 1.0 + 0.1 * random.normal(size=50), common
    order = random.permutation(50)
    paired = paired_difference(a, b[order], a_episodes=np.arange(50), b_episodes=order)
    assert paired.difference == episodes_mean(a - b)
    assert paired.difference.estimate == pytest.approx((a - b).mean())
    assert paired.correlation == pytest.approx(scipy.stats.pearsonr(a, b).statistic)
    expected = (np.var(a, ddof=1) + np.var(b, ddof=1)) / np.var(a - b, ddof=1)
    assert paired.variance_ratio == pytest.approx(expected)
    assert paired.variance_ratio > 50


def test_paired_difference_of_a_policy_with_itself():
    x, ids = np.arange(64.0), np.arange(64)
    paired = paired_difference(x, x, a_episodes=ids, b_episodes=ids)
    assert bounds(paired.difference) == (0.0, 0.0)
    assert (paired.correlation, paired.variance_ratio) == (pytest.approx(1.0), None)
    flat = paired_difference(x, np.ones(64), a_episodes=ids, b_episodes=ids)
    assert (flat.correlation, flat.variance_ratio) == (None, pytest.approx(1.0))


@pytest.mark.parametrize(
    ("a_episodes", "b_episodes", "message"),
    [
        ([0, 1, 2], [0, 1, 3], r"1 only in a \(2\), 1 only in b \(3\)"),
        ([0, 1, 1], [0, 1, 2], "episode 1 stands twice"),
        ([0, 1], [0, 1, 2], "one whole number for each of the 3 values"),
        ([0.0, 1.0, 2.0], [0, 1, 2], "whole number"),
    ],
)
def test_other_episodes_are_no_comparison(a_episodes, b_episodes, message):
    x = [1.0, 2.0, 3.0]
    with pytest.raises(ValueError, match=message):
        paired_difference(x, x, a_episodes=a_episodes, b_episodes=b_episodes)


def test_probability_of_improvement_is_mann_and_whitneys_statistic():
    a, b = TASKS["reach"][:9], [*TASKS["push"], 0.79, 0.95]
    ours = probability_of_improvement(a, b)
    assert ours.estimate == pytest.approx(scipy.stats.mannwhitneyu(a, b).statistic / (9 * 12))
    low, high = bounds(ours)
    assert 0 < low < ours.estimate < high < 1
    other = probability_of_improvement(b, a)
    assert bounds(other) == pytest.approx((1 - high, 1 - low))


def test_probability_of_improvement_averages_tasks_and_matches_them_by_name():
    easy = {"x": TASKS["reach"], "y": TASKS["push"]}
    hard = {"y": TASKS["reach"][::-1], "x": [v - 0.02 for v in TASKS["reach"]]}
    single = [probability_of_improvement(easy[t], hard[t]).estimate for t in "xy"]
    assert single[1] == 0.0  # push never beats reach
    assert probability_of_improvement(easy, hard).estimate == pytest.approx(np.mean(single))
    with pytest.raises(ValueError, match="same"):
        probability_of_improvement(easy, {"x": TASKS["reach"]})
    with pytest.raises(ValueError, match="both or in neither"):
        probability_of_improvement(easy, TASKS["reach"])


def test_probability_of_improvement_without_overlap_shows_no_interval():
    ours = probability_of_improvement(TASKS["reach"], TASKS["push"])
    assert (ours.estimate, ours.low) == (1.0, None)
    assert "do not overlap" in ours.rule


def test_performance_profile_counts_runs_above_each_threshold():
    profile = performance_profile(TASKS, [0.0, 0.5, 0.8, 1.0])
    assert profile.fractions == pytest.approx([1.0, 0.6, 0.3, 0.0])
    exact = scipy.stats.binomtest(12, 20).proportion_ci(0.95, method="exact")
    assert (profile.low[1], profile.high[1]) == pytest.approx((exact.low, exact.high))
    assert (profile.high[0], profile.low[3], profile.n) == (1.0, 0.0, 20)
    with pytest.raises(ValueError, match="equally many runs"):
        performance_profile({"a": [1.0, 2.0], "b": [1.0]}, [0.0])


def test_probability_of_improvement_counts_pairs_and_half_of_the_ties():
    """The definition of Agarwal et al. (2021), pair by pair."""
    a, b = (
        {"x": [1, 2, 2, 5, 3], "y": [0, 0, 1, 1, 1]},
        {"x": [2, 2, 4, 0, 1], "y": [1, 1, 1, 0, 2]},
    )
    by_task = [
        sum(1.0 if p > q else 0.5 if p == q else 0.0 for p in a[task] for q in b[task]) / 25
        for task in a
    ]
    assert probability_of_improvement(a, b).estimate == pytest.approx(sum(by_task) / 2)
    assert probability_of_improvement(a, a).estimate == 0.5


def test_optimality_gap_counts_only_what_is_missing():
    """Agarwal et al. (2021): the target less the mean of scores cut off at the target."""
    scores = {"x": [0.5, 1.5, 1.0, 0.7, 0.9], "y": [0.2, 0.4, 3.0, 0.8, 0.6]}
    gap = optimality_gap(scores)
    assert gap.estimate == pytest.approx(1 - np.minimum(np.ravel(list(scores.values())), 1).mean())
    assert gap.estimate == pytest.approx((0.5 + 0 + 0 + 0.3 + 0.1 + 0.8 + 0.6 + 0 + 0.2 + 0.4) / 10)
    assert gap.low is not None
    assert optimality_gap(scores["x"], 0.9).estimate == pytest.approx((0.4 + 0.2) / 5)
    reached = optimality_gap([1.0, 1.2, 1.1, 2.0, 1.5])
    assert (reached.estimate, reached.low) == (0.0, None)
    assert "every run reaches the target" in reached.rule
    assert "no interval below 5 runs" in optimality_gap([0.1, 0.2]).rule
    with pytest.raises(ValueError, match="target=nan"):
        optimality_gap([1.0], float("nan"))


# ------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mean_interval([1.0, np.nan]), r"x\[1\] is nan"),
        (lambda: mean_interval([]), r"x has shape \(0,\)"),
        (lambda: mean_interval([[1.0]]), r"x has shape \(1, 1\)"),
        (lambda: runs_mean({"a": [1.0, np.inf]}), r"scores\['a'\]\[1\] is inf"),
        (lambda: runs_mean({}), "no task"),
        (lambda: mean_interval([1.0], level=95), "level=95"),
        (lambda: mean_interval([1.0], at_least=3), "at_least=3: 5 or more"),
        (lambda: success_rate(3, 2), "k=3, n=2"),
        (lambda: success_rate(0, 0), "k=0, n=0"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_importing_the_module_does_not_import_scipy():
    code = "import sys, palestra.stats; print('scipy' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "False"
