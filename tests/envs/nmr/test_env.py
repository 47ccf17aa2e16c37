"""The two environments: reference figures, bounds, rewards, bits, options, refusals."""

from __future__ import annotations

import copy
import math
import pickle
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from palestra.batch import Episodes, Step
from palestra.envs.nmr.bloch import length_bound
from palestra.envs.nmr.env import ALIGNED, NMRAlign, NMRRelax, PulseAction
from palestra.envs.nmr.events import EventList, run
from palestra.envs.nmr.sample import (
    PRESETS,
    Field,
    Instrument,
    Sample,
    Species,
    Vary,
    load_sample,
)

BOTH = pytest.mark.parametrize("cls", [NMRRelax, NMRAlign])


def started(env, seed=0, options=None):
    episodes = Episodes(env)
    episodes.seed(seed)
    episodes.begin(env.everyone, options)
    return episodes


def play(env, policy, seed=0, options=None):
    """Metrics, returns and durations of one episode a row; `policy(observation, step)`."""
    episodes = started(env, seed, options)
    total, seconds = np.zeros(env.rows), np.zeros(env.rows)
    for k in range(env.horizon):
        live = ~episodes.ended
        step, _ = episodes.advance(policy(episodes.observe(), k), live)
        total[live] += step.reward[live]
        seconds[live] += step.duration[live]
    return env.metrics(), total, seconds


def random_policy(rows, seed=0):
    rng = np.random.default_rng(seed)
    return lambda observation, k: rng.uniform(-1, 1, (rows, 3)).astype(np.float32)


def idle(env):
    return lambda observation, k: env.action.encode(np.zeros(env.rows), 0.0, env.action.tau_min)


# ---------------------------------------------------------------------- the reference set-up, 6.1


def test_waiting_and_floor_of_the_reference_set_up():
    """Waiting 2.752 s and floor 0.684 s, means over starts 2 to 20 ms after excitation."""
    env = NMRRelax(4096)
    metrics, returns, _ = play(env, idle(env))
    assert metrics["waiting_time"].mean() == pytest.approx(2.752, abs=0.002)
    assert metrics["time_floor"].mean() == pytest.approx(0.684, abs=0.01)
    np.testing.assert_allclose(metrics["time_to_equilibrium"], metrics["waiting_time"], rtol=1e-12)
    np.testing.assert_allclose(returns, 0.0, atol=1e-12)


def test_waiting_time_is_t1_ln_of_the_deviation_over_tol():
    env = NMRRelax(64)
    started(env)
    deviation = abs(1 - env.m[:, 2].mean(1))
    np.testing.assert_allclose(env.metrics()["waiting_time"], 0.6 * np.log(deviation / 0.01))


# ------------------------------------------------------ what holds for every policy (qutip-qoc#34)


@pytest.mark.parametrize("sample", [*PRESETS, "mixed, slow first"])
def test_no_policy_beats_the_floor_or_lengthens_a_vector(sample):
    if sample == "mixed, slow first":
        mixed = load_sample("mixed")
        sample = replace(mixed, species=mixed.species[::-1])
    env = NMRRelax(1000, sample=sample)
    metrics, returns, seconds = play(env, random_policy(1000))
    assert (metrics["time_to_equilibrium"] >= metrics["time_floor"] - 1e-9).all()
    assert np.linalg.norm(env.m, axis=1).max() <= 1 + 1e-12
    np.testing.assert_allclose(metrics["sequence_time"], seconds)
    T1 = 1 / env.ensemble.R1.min(axis=1)
    np.testing.assert_allclose(returns, metrics["time_saved"] / T1, atol=1e-10)


@pytest.mark.parametrize("sample", PRESETS)
def test_no_policy_signals_more_than_the_length_bound(sample):
    env = NMRAlign(1000, sample=sample)
    episodes = started(env)
    bound = length_bound(env.m, env.ensemble)
    start = np.hypot(*episodes.observe()[:, :2].T.astype(float))
    metrics, returns, seconds = play(env, random_policy(1000))
    assert (metrics["signal"] <= metrics["length_bound"] + 1e-12).all()
    np.testing.assert_allclose(metrics["length_bound"], length_bound(env.m, env.ensemble))
    T1 = 1 / env.ensemble.R1.min(axis=1)
    gained = (metrics["signal"] ** 2 - start**2) / bound**2
    np.testing.assert_allclose(returns, gained - seconds / T1, atol=1e-5)


# ------------------------------------------------------------------------------ the rule of the end


def test_residual_transverse_magnetisation_counts_as_error():
    env = NMRRelax(1)
    tilted = np.array([math.sqrt(1 - 0.995**2), 0.0, 0.995])  # Mz within 1 %, Mxy 0.0999
    started(env, options=[{"magnetisation": tilted}])
    assert env.metrics()["waiting_time"][0] == pytest.approx(
        0.3 * math.log(0.0998749 / 0.01), rel=1e-5
    )


def test_dephasing_does_not_hide_transverse_magnetisation():
    env = NMRRelax(1, sample="oil")
    n = env.m.shape[2]
    turn = 2 * np.pi * np.arange(n) / n
    scattered = np.stack([0.1 * np.cos(turn), 0.1 * np.sin(turn), np.full(n, 0.994)])
    started(env, options=[{"magnetisation": scattered}])
    assert env.metrics()["waiting_time"][0] == pytest.approx(0.3 * math.log(10), rel=1e-9)


def test_species_do_not_cancel():
    """Two species off by +5 % and -5 % are not at equilibrium, though their mean is."""
    env = NMRRelax(1, sample="mixed")
    n = env.m.shape[2] // 2
    state = np.zeros((3, 2 * n))
    state[2] = np.repeat([0.90, 1.0], n)
    started(env, options=[{"magnetisation": state}])
    assert env.metrics()["waiting_time"][0] == pytest.approx(0.3 * math.log(0.05 / 0.01), rel=1e-9)


def test_an_episode_ends_when_both_are_within_tol():
    env = NMRRelax(2, horizon=4)
    near = [{"magnetisation": [0.0, 0.0, 0.9899]}, {"magnetisation": [0.0, 0.0, 0.9]}]
    episodes = started(env, options=near)
    wait = env.action.encode(np.zeros(2), 0.0, 0.04)
    step, ended = episodes.advance(wait)
    assert step.terminated.tolist() == [True, False]
    assert ended == 1
    assert env.metrics()["time_to_equilibrium"][0] == pytest.approx(0.04)


def test_alignment_ends_the_episode():
    env = NMRAlign(1)
    episodes = started(env, options=[{"theta0": 0.0}])
    step, _ = episodes.advance(env.action.encode([math.pi / 2], 0.0, env.action.tau_min))
    assert step.terminated[0]
    assert env.metrics()["aligned"][0]
    assert env.metrics()["alignment"][0] >= ALIGNED


# ---------------------------------------------------------------------------------- observations


@BOTH
@pytest.mark.parametrize(("sample", "pulse"), [("mixed", 0.0), ("soil", 1.0 / (2 * math.pi * 5e3))])
def test_observations_are_what_they_say(cls, sample, pulse):
    env = cls(16, sample=sample)
    episodes = started(env)
    theta, phi, tau = np.full(16, 1.0), np.full(16, -2.0), np.full(16, 4e-3)
    before = episodes.observe()[:, 6].astype(float) * 0.02
    episodes.advance(env.action.encode(theta, phi, tau))
    seen = episodes.observe()
    w = env.ensemble.weight
    expected = [env.m[:, 0] @ w, env.m[:, 1] @ w, env.m[:, 2] @ w]
    expected += [np.hypot(env.m[:, 0], env.m[:, 1]) @ w, theta / math.pi]
    expected += [2 * np.log(tau / 1e-4) / math.log(400) - 1, (before + pulse + tau) / 0.02]
    expected += [np.full(16, 1 / env.horizon)]
    np.testing.assert_allclose(seen, np.stack(expected, 1), atol=1e-6)
    assert seen.dtype == np.float32
    assert env.observation_space.contains(seen[0])


@BOTH
def test_looking_twice_shows_the_same_bits_and_only_the_asked_rows(cls):
    env = cls(8)
    episodes = started(env)
    assert episodes.observe().tobytes() == episodes.observe().tobytes()
    out = np.full((8, 8), 7.0, np.float32)
    some = np.arange(8) < 3
    env.observe(some, episodes.streams, out)
    assert out[:3].tobytes() == episodes.observe()[:3].tobytes()
    assert (out[3:] == 7.0).all()


# -------------------------------------------------------------------------------- bits and state


@BOTH
@pytest.mark.parametrize("sample", ["oil", "soil", "mixed", "random"])
def test_an_episode_is_the_same_bits_at_1_7_and_64_rows(cls, sample):
    """L1, hard and finite pulses, one species and two, fixed and drawn relaxation."""
    actions = np.random.default_rng(0).uniform(-1, 1, (64, 8, 3)).astype(np.float32)
    played = {}
    for rows in (64, 7, 1):
        env = cls(rows, sample=sample)
        for first in range(0, 64, rows) if rows == 64 else (0, 21, 63 // rows * rows):
            numbers = [min(first + r, 63) for r in range(rows)]
            episodes = Episodes(env)
            episodes.seed(5)
            episodes.begin(env.everyone, [{"episode": i} for i in numbers])
            bits = [[episodes.observe()[r].tobytes()] for r in range(rows)]
            for k in range(env.horizon):
                live = ~episodes.ended
                step, _ = episodes.advance(actions[numbers, k], live)
                seen = episodes.observe()
                for r in np.flatnonzero(live):
                    bits[r].append(seen[r].tobytes() + step.reward[r].tobytes())
                    bits[r].append(step.duration[r].tobytes() + step.terminated[r].tobytes())
            for r, number in enumerate(numbers):
                end = [m[r].tobytes() for m in env.metrics().values()] + [env.m[r].tobytes()]
                assert played.setdefault(number, bits[r] + end) == bits[r] + end


@BOTH
def test_rows_that_are_not_live_do_not_move(cls):
    env = cls(6)
    episodes = started(env)
    live = np.arange(6) % 2 == 0
    before = env.snapshot(~live)
    episodes.advance(random_policy(6)(None, 0), live)
    after = env.snapshot(~live)
    assert all(before[name].tobytes() == after[name].tobytes() for name in before)


@BOTH
def test_snapshot_and_restore_are_exact(cls):
    env = cls(9, sample="random")
    episodes = started(env)
    policy = random_policy(9)
    episodes.advance(policy(None, 0))
    kept, some = env.snapshot(env.everyone), np.arange(9) < 4
    actions = policy(None, 1)
    first = episodes.advance(actions, ~episodes.ended)[0].reward.copy()
    end = env.snapshot(env.everyone)
    env.restore(kept, env.everyone)
    episodes.ended[:] = False
    second = episodes.advance(actions)[0].reward
    again = env.snapshot(env.everyone)
    assert first.tobytes() == second.tobytes()
    assert all(end[name].tobytes() == again[name].tobytes() for name in end)
    env.restore({name: array[some] for name, array in kept.items()}, some)
    mixed = env.snapshot(env.everyone)
    assert mixed["m"][:4].tobytes() == kept["m"][:4].tobytes()
    assert mixed["m"][4:].tobytes() == end["m"][4:].tobytes()


@BOTH
@pytest.mark.parametrize("clone", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_copies_go_on_alike(cls, clone):
    env = cls(3, sample="random")
    policy = random_policy(3)
    episodes = started(env)
    episodes.advance(policy(None, 0))
    other = clone(env)
    again = Step(3)
    actions, live = policy(None, 1), ~episodes.ended
    other.advance(actions, live, episodes.streams, again)
    step, _ = episodes.advance(actions, live)
    assert step.reward.tobytes() == again.reward.tobytes()
    one, two = env.snapshot(env.everyone), other.snapshot(env.everyone)
    assert all(one[name].tobytes() == two[name].tobytes() for name in one)


@BOTH
def test_the_event_list_of_an_episode_reproduces_its_state(cls):
    for sample in ("oil", "soil"):
        env = cls(4, sample=sample)
        episodes = started(env)
        start = env.m.copy()
        for k in range(3):
            episodes.advance(random_policy(4, k)(None, 0), ~episodes.ended)
        for row in range(4):
            events = env.events(row)
            assert isinstance(events, EventList)
            end = run(events, env.isochromats(row), start[row : row + 1]).m[0]
            np.testing.assert_allclose(end, env.m[row], atol=5e-4 if sample == "soil" else 1e-12)
            assert events.duration == pytest.approx(env.metrics()["sequence_time"][row])


def test_finite_pulses_take_time():
    env = NMRRelax(1, sample="soil")
    episodes = started(env)
    step, _ = episodes.advance(env.action.encode([math.pi], 0.0, 1e-3))
    assert step.duration[0] == pytest.approx(1e-3 + 100e-6, rel=1e-6)


# ------------------------------------------------------------------------------ starts and options


def test_starts_are_2_to_20_ms_after_an_excitation_of_phase_x():
    env = NMRRelax(2000)
    seen = started(env).observe()
    tau0 = seen[:, 6] * 20
    assert tau0.min() > 2
    assert tau0.max() < 20
    assert np.histogram(tau0, 6, (2, 20))[0].min() > 250
    assert (seen[tau0 < 3, 1] < -0.9).all()  # still along -y
    np.testing.assert_allclose(seen[:, 4], 0.5)


def test_options_set_the_start_of_one_row():
    env = NMRAlign(3)
    options = [
        {},
        {"tau0": 0.01, "theta0": 0.0, "polarisation": 0.5},
        {"magnetisation": [0, 0, -1]},
    ]
    seen = started(env, options=options).observe()
    assert seen[1, 6] == np.float32(0.5)
    assert seen[1, 2] == pytest.approx(1 - 0.5 * math.exp(-0.01 / 0.6), abs=1e-6)
    assert seen[2, 2] == -1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tau0": -1.0}, r"options\['tau0'\]: got -1.0, allowed 0 to"),
        ({"theta0": math.nan}, r"options\['theta0'\]: got nan, allowed 0 to 6.28"),
        ({"polarisation": "all"}, r"options\['polarisation'\]: got 'all', allowed -1 to 1"),
        ({"magnetisation": [1.0, 1.0, 1.0]}, "vectors longer than 1 or not finite"),
        ({"magnetisation": [1.0, 0.0]}, r"got shape \(2,\), allowed \(3, 24\) or \(3,\)"),
        ({"tau0": True}, r"options\['tau0'\]: got True, allowed 0 to 1e\+06 s"),
        ({"tau0": 10**400}, r"options\['tau0'\]: got 1000.* characters\), allowed 0 to 1e\+06 s"),
        ({"tau0": math.inf}, r"options\['tau0'\]: got inf, allowed 0 to"),
        ({"tau0": None}, r"options\['tau0'\]: got None, allowed 0 to"),
        ({"tau0": [0.01]}, r"options\['tau0'\]: got \[0.01\], allowed 0 to"),
        ({"theta0": np.True_}, r"options\['theta0'\]: got np.True_, allowed 0 to 6.28"),
        ({"theta0": np.complex128(1)}, r"options\['theta0'\]: got np.complex128.*, allowed 0 to"),
        ({"polarisation": False}, r"options\['polarisation'\]: got False, allowed -1 to 1"),
        ({"magnetisation": "up"}, "magnetisation'.: got 'up', allowed an array of real numbers"),
        ({"magnetisation": None}, "magnetisation'.: got None, allowed an array of real numbers"),
        ({"magnetisation": [True, False, False]}, "got .True, False, False., allowed an array"),
        ({"magnetisation": [0, 0, 1j]}, r"got \[0, 0, 1j\], allowed an array of real"),
        ({"magnetisation": [[0], [0, 1], [0]]}, r"got \[\[0\], \[0, 1\], \[0\]\], allowed an arr"),
        ({"magnetisation": [0, 0, 10**400]}, r"got \[0, 0, 1000.*, allowed an array of real"),
        (
            {"magnetisation": [0, 0, math.nan]},
            "not finite .of length nan., allowed lengths of 0 to",
        ),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        started(NMRRelax(1), options=[options])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tau_min": 0.0}, r"tau_min: got 0.0, allowed 1e-09 to 1e\+06 s"),
        ({"tau_min": 0.05}, r"tau_max: got 0.04, allowed above tau_min = 0.05 s"),
        ({"theta_max": 0.0}, r"theta_max: got 0.0, allowed 1e-06 to 6.28319 rad"),
        ({"tol": 0.0}, r"tol: got 0.0, allowed 1e-09 to 1 \(below 1\)"),
        ({"tau0": (0.02, 0.01)}, r"tau0: got \(0.02, 0.01\), allowed \(low, high\), low <= high"),
        ({"horizon": None}, r"horizon: got None, allowed an integer"),
        ({"sample": "oyl"}, r"sample: got 'oyl', allowed oil"),
        ({"horizon": 10**400}, r"horizon: got 1000.*, allowed an integer 1 to 1000000"),
        ({"tau0": (0, math.inf)}, r"tau0: got \(0, inf\), allowed .* within 0 to 1e\+06 s"),
        ({"tau0": (0, 1e300)}, r"tau0: got \(0, 1e\+300\), allowed .* within 0 to 1e\+06 s"),
        ({"tau0": (0, 10**400)}, r"tau0: got \(0, 1000.*, allowed .* within 0 to 1e\+06 s"),
        ({"tau0": (0, math.nan)}, r"tau0: got \(0, nan\), allowed"),
        ({"tau0": (False, True)}, r"tau0: got \(False, True\), allowed"),
        ({"tau0": 0.01}, r"tau0: got 0.01, allowed \(low, high\)"),
        ({"tau0": "ab"}, r"tau0: got 'ab', allowed \(low, high\)"),
        ({"tau0": ("0", "1")}, r"tau0: got \('0', '1'\), allowed \(low, high\)"),
        ({"tau0": (0.0, 1.0, 2.0)}, r"tau0: got \(0.0, 1.0, 2.0\), allowed \(low, high\)"),
        ({"tau0": np.array(3.0)}, r"tau0: got array\(3.\), allowed \(low, high\)"),
        ({"tau0": None}, r"tau0: got None, allowed \(low, high\)"),
        ({"theta0": (0.0, 7.0)}, r"theta0: got \(0.0, 7.0\), allowed .* within 0 to 6.28319 rad"),
        ({"polarisation": (-2, 1)}, r"polarisation: got \(-2, 1\), allowed .* within -1 to 1"),
        ({"theta_max": True}, r"theta_max: got True, allowed"),
        ({"theta_max": math.nan}, r"theta_max: got nan, allowed"),
        ({"theta_max": "180"}, r"theta_max: got '180', allowed"),
        ({"tau_min": 1e-320}, r"tau_min: got 1e-320, allowed 1e-09 to"),
        ({"tau_min": None}, r"tau_min: got None, allowed 1e-09 to"),
        ({"tau_max": math.inf}, r"tau_max: got inf, allowed 1e-09 to 1e\+06 s"),
        ({"tau_max": 1e300}, r"tau_max: got 1e\+300, allowed 1e-09 to 1e\+06 s"),
        ({"tau_min": 0.04}, r"tau_max: got 0.04, allowed above tau_min = 0.04 s"),
        ({"tol": 1e-320}, r"tol: got 1e-320, allowed 1e-09 to 1 \(below 1\)"),
        ({"tol": 1.0}, r"tol: got 1.0, allowed 1e-09 to 1 \(below 1\)"),
        ({"tol": "1 %"}, r"tol: got '1 %', allowed"),
        ({"tol": True}, r"tol: got True, allowed"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        NMRRelax(1, **settings)


def test_a_sample_of_no_kind_is_refused():
    with pytest.raises(TypeError, match="sample: got 3, allowed oil"):
        NMRRelax(1, sample=3)


def test_a_delay_in_which_no_float_holds_the_phase_is_refused():
    """2**49 turns; a Lorentzian reaches a million widths out."""
    oil = load_sample("oil")
    instrument = Instrument(dwell=1e-6, pulse_model="finite")
    field = Field(b0_fwhm_hz=1000.0, b0_shape="lorentzian")
    wide = replace(oil, field=field, instrument=instrument)
    said = r"562950 s with offsets of up to 1e\+09 Hz"
    with pytest.raises(ValueError, match=r"tau_max: got 600000.0, allowed 0 to " + said):
        NMRRelax(1, sample=wide, tau_max=6e5)
    with pytest.raises(ValueError, match=r"tau0: got \(0, 600000.0\), allowed .* 0 to " + said):
        NMRRelax(1, sample=wide, tau0=(0, 6e5))
    with pytest.raises(ValueError, match=r"options\['tau0'\]: got 600000.0, .* 0 to " + said):
        started(NMRRelax(1, sample=wide), options=[{"tau0": 6e5}])


def extremes():
    """Samples at the ends of the ranges: relaxation, widths, lines, temperature of the noise."""
    field = Field(b0_fwhm_hz=0.0, b1_sd=0.2, n_iso=4)
    fine = Instrument(dwell=1e-9, pulse_model="finite", nu1_max_hz=1e7)
    for T1, T2 in ((1e-9, 1e-9), (1e9, 1e-9), (1e9, 1e9)):
        yield Sample((Species(1.0, T1, T2),), field, Instrument())
    slow, fast = Species(0.5, 1e9, 1e9, shift_hz=1e6), Species(0.5, 1e-9, 1e-9, J_hz=1e6, n_H=3)
    for shape in ("gaussian", "lorentzian", "uniform"):
        yield Sample((slow, fast), replace(field, b0_fwhm_hz=1e5, b0_shape=shape), fine)
    vary = Vary((1e-6, 1e9), (1e-3, 1.0), (0.0, 1e5))
    yield Sample((Species(1.0, 1.0, 1.0),), field, fine, vary=vary)


@BOTH
@pytest.mark.parametrize("sample", list(extremes()))
@pytest.mark.parametrize("times", [{}, {"tau_min": 1e-9, "tau_max": 5e3, "tau0": (0.0, 5e3)}])
@pytest.mark.filterwarnings("ignore:instrument.pulse_model")
def test_the_ends_of_every_range_give_finite_episodes(cls, sample, times):
    rows = 32
    env = cls(rows, sample=sample, **times)
    metrics, returns, _ = play(env, random_policy(rows))
    assert np.linalg.norm(env.m, axis=1).max() <= 1 + 1e-9
    assert np.isfinite(returns).all()
    assert np.isfinite(env._observation).all()
    for name, values in metrics.items():
        assert np.isfinite(values).all(), name


def test_actions_that_are_not_finite_are_refused_before_anything_changes():
    env = NMRRelax(2)
    episodes = started(env)
    before = env.m.tobytes()
    with pytest.raises(ValueError, match="nan"):
        episodes.advance(np.array([[0, 0, 0], [0, np.nan, 0]], np.float32))
    assert env.m.tobytes() == before


def test_limits_of_flip_angle_and_delay_are_kept():
    """qutip-qtrl#11: bounds for each control separately."""
    env = NMRRelax(200, theta_max=math.radians(60), tau_max=5e-3)
    play(env, random_policy(200))
    events = [event for row in range(200) for event in env.events(row)]
    assert max(e.theta for e in events) <= math.radians(60)
    assert max(e.theta for e in events) > math.radians(59)
    assert max(e.tau for e in events) <= 5e-3 * (1 + 1e-12)
    assert min(e.tau for e in events) >= 1e-4


def test_isochromats_on_a_grid_are_warned_of():
    oil = load_sample("oil")
    grid = replace(oil, field=replace(oil.field, sampling="equispaced"))
    with pytest.warns(UserWarning, match="fake an echo"):
        NMRRelax(1, sample=grid)


def test_encode_is_the_inverse_of_decode():
    action = PulseAction()
    theta, phi, tau = action.decode(action.encode([0.3, 3.0], [-3.0, 1.0], [1e-4, 0.03]))
    np.testing.assert_allclose(theta, [0.3, 3.0], rtol=1e-6)
    np.testing.assert_allclose(phi, [-3.0, 1.0], rtol=1e-6)
    np.testing.assert_allclose(tau, [1e-4, 0.03], rtol=1e-6)


def test_longer_delays_take_longer():
    times = [PulseAction().decode([0, 0, a])[2] for a in (-1, -0.5, 0, 0.5, 1)]
    assert all(a < b for a, b in pairwise(times))
    assert times[0] == pytest.approx(1e-4)
    assert times[-1] == pytest.approx(4e-2)


# ------------------------------------------------------------------------------------- pictures


@BOTH
def test_pictures_change_with_the_state_and_are_repeatable(cls):
    env = cls(2)
    episodes = started(env)
    first = env.render(0)
    assert first.shape == (480, 960, 3)
    assert first.dtype == np.uint8
    assert (env.render(0) == first).all()
    episodes.advance(random_policy(2)(None, 0))
    assert (env.render(0) != first).any()
    assert (env.render(1) != env.render(0)).any()


def test_a_film_ends_where_the_episode_stands():
    env = NMRRelax(1)
    episodes = started(env)
    for k in range(2):
        episodes.advance(random_policy(1, k)(None, 0))
    pictures = list(env.film(0, 5))
    assert len(pictures) == 5
    sphere = np.s_[60:430, :430]  # below the caption, left of the curves
    assert (pictures[-1][sphere] == env.render(0)[sphere]).all()
    assert (pictures[0][sphere] != pictures[-1][sphere]).any()


def test_without_matplotlib_drawing_names_the_extra(monkeypatch):
    import sys

    for name in ("matplotlib.backends.backend_agg", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    env = NMRRelax(1)
    started(env)
    with pytest.raises(ImportError, match=r'pip install "palestra\[report\]"'):
        env.render(0)
