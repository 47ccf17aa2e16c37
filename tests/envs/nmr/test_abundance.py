"""The environments of abundance: classical values, turns, books, bad input."""

import dataclasses
import math

import numpy as np
import pytest

import palestra
from palestra.batch import Episodes
from palestra.controllers import CATALOGUE
from palestra.envs.nmr.abundance import NMRAbundance
from palestra.envs.nmr.pulses import cpmg_efficiency, de_cpmg_efficiency
from palestra.envs.nmr.sample import Field, Instrument, Sample, Species, Task
from palestra.envs.nmr.team import NMRTeam

SHOTS = [name for name, v in CATALOGUE.items() if "nmr_shots" in v and "adaptive" not in name]
ORACLES = [name for name in SHOTS if name != "cpmg-worst-case"]


def ideal(T1, T2, eps1=0.3, eps=0.01):
    """A perfect magnet, coil and receiver, and a target so far off that the start hardly counts."""
    return Sample(
        species=(Species(1.0, T1, T2),),
        field=Field(b0_fwhm_hz=0.0, b1_sd=0.0, n_iso=1),
        instrument=Instrument(dead_time=0.0, eps1=eps1),
        task=Task(eps=eps, max_time=1e6),
    )


def efficiency(policy, sample, **settings):
    given = {"sample": dataclasses.asdict(sample), "horizon": 20_000, **settings}
    found = palestra.evaluate(policy, "NMRAbundance", episodes=1, seed=0, settings=given)
    assert found.column("target_met").all()
    return float(found.column("efficiency")[0])


@pytest.mark.parametrize("k", [1.0, 2.0, 5.0])
def test_cpmg_has_the_efficiency_of_its_formula(k):
    """A13: .288447, .326070, .353755 for a train of 1.5 T2 and a wait of 5 T1."""
    sample = ideal(1.0, 1.0 / k)
    expected = {1.0: 0.288447, 2.0: 0.326070, 5.0: 0.353755}[k]
    assert cpmg_efficiency(5.0, 1.5, k) == pytest.approx(expected, abs=1e-6)
    found = efficiency("cpmg-5t1", sample, te=5e-3)
    assert found == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(("k", "expected"), [(1.0, 0.431622), (2.0, 0.528439), (5.0, 0.637490)])
def test_tuned_cpmg_has_the_best_efficiency_of_that_formula(k, expected):
    assert efficiency("cpmg-tuned", ideal(1.0, 1.0 / k), te=5e-3) == pytest.approx(
        expected, rel=0.02
    )


def test_short_trains_with_flip_back_near_the_ideal():
    found = efficiency("de-cpmg", ideal(1.0, 0.5), te=5e-3)
    assert 0.93 * de_cpmg_efficiency(2.0) < found <= de_cpmg_efficiency(2.0) * 1.01


def test_steady_state_free_precession_meets_the_bound():
    """Continuous and on resonance it is the optimum: what is lost is te against T2."""
    losses = [
        1 - efficiency("bssfp", ideal(0.6, 0.3, eps=0.03), te=te, most_pulses=n)
        for te, n in ((8e-3, 4000), (2e-3, 16_000))
    ]
    assert losses[1] < 0.006
    assert 0 < losses[1] < losses[0] < 0.02


@pytest.mark.parametrize("name", ORACLES)
def test_classical_measurements_are_where_they_belong(name):
    found = palestra.evaluate(name, "NMRAbundance", episodes=32, seed=0, settings={"horizon": 512})
    over = np.exp(np.log(found.column("time_over_bound")).mean())
    low, high = {
        "ninety-5t1": (20, 90),
        "ninety-126": (10, 50),
        "ernst": (6, 40),
        "cpmg-5t1": (2.9, 3.7),
        "cpmg-tuned": (1.7, 2.2),
        "de-cpmg": (1.3, 1.7),
        "deft-shots": (1.3, 1.8),
        "bssfp": (1.08, 1.2),
        "ir-bssfp": (2.0, 6.0),
        "saturation-recovery": (20, 200),
        "inversion-recovery": (20, 200),
    }[name]
    assert low < over < high, over
    assert (found.column("efficiency") <= 1).all()


def test_the_textbook_pays_for_its_free_induction_decay():
    """Pitfall 7: in a spread field any echo train beats it by an order of magnitude."""
    both = palestra.compare(["ninety-5t1", "cpmg-5t1"], "NMRAbundance", episodes=32, seed=1)
    time = [e.column("time_over_bound").mean() for e in both.evaluations.values()]
    assert time[0] > 8 * time[1]


def test_a_policy_that_estimates_asks_for_records():
    env = NMRAbundance(1, sample="oil")
    with pytest.raises(ValueError, match="AdaptiveCPMG goes by its own estimates"):
        palestra.evaluate("adaptive-cpmg", "NMRAbundance", episodes=1, seed=0)
    assert not env.measured


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"horizon": 0}, "horizon: got 0"),
        ({"most_pulses": 1}, "most_pulses: got 1"),
        ({"reward": "money"}, "reward: got 'money', allowed"),
        ({"observation": "all"}, "observation: got 'all', allowed"),
        ({"information": "some"}, "information: got 'some', allowed"),
        ({"eps": 0.0}, "eps: got 0.0"),
        ({"eps1": math.nan}, "eps1: got nan"),
        ({"te": -1.0}, "te: got -1.0"),
        ({"sample": "oil.toml"}, "oil.toml"),
    ],
)
@pytest.mark.parametrize("env", [NMRAbundance, NMRTeam])
def test_bad_settings(env, settings, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        env(1, **settings)


def test_easier_than_one_shot_has_no_bound():
    """eps >= eps1 is allowed: the bound is 0, and T1 is the measure of time."""
    env = NMRAbundance(1, sample="oil", eps=0.5)
    episodes = Episodes(env)
    episodes.reset(0)
    assert env.books["bound"][0] == 0.0
    episodes.advance(env.action.encode(math.pi / 2, math.pi, 100, 0, 0)[np.newaxis])
    assert env.metrics()["efficiency"][0] == 0.0
    assert 0 < env.metrics()["time_over_bound"][0] < 1  # in units of T1


# --- the team -------------------------------------------------------------------------------------


def test_the_team_plays_the_same_shots_to_the_same_end():
    """An align and a relax are one shot: same spins, same clock, same information."""
    alone, team = NMRAbundance(1, sample="oil", eps=0.01), NMRTeam(1, sample="oil", eps=0.01)
    alone.stream_name = team.stream_name  # the same episodes
    one, three = Episodes(alone), Episodes(team)
    one.reset(4)
    three.reset(4)
    rng = np.random.default_rng(0)
    for _ in range(5):
        action = rng.uniform(-1, 1, 5).astype(np.float32)
        one.advance(action[np.newaxis])
        for choice in (0, None, 1, None):
            toggle = np.array([0 if choice is None else choice])
            three.advance({"toggle": toggle, "align": action[None, :3], "relax": action[None, 3:]})
    np.testing.assert_allclose(alone.m, team.m, atol=1e-15)
    for name in ("elapsed", "information", "shots", "bound"):
        assert alone.books[name][0] == pytest.approx(team.books[name][0], rel=1e-13)
    assert alone.events(0) == team.events(0)


def test_turns_rewards_and_stopping():
    env = palestra.make("NMRTeam", "aec", sample="oil")
    env.reset(seed=0)
    assert env.agent_selection == "toggle"
    env.step(0)
    assert env.agent_selection == "align"
    env.step(np.array([0.0, 1.0, 0.5], np.float32))
    assert env.agent_selection == "toggle"
    share = env.infos["toggle"]
    assert env.rewards["align"] > env.rewards["relax"]  # information is align's
    assert env.rewards["relax"] == pytest.approx(-share["dt"] / 42.0)  # T_bound of oil
    env.step(1)
    assert env.agent_selection == "relax"
    env.step(np.array([0.5, -1.0], np.float32))
    env.step(2)
    assert env.terminations == dict.fromkeys(("toggle", "align", "relax"), True)
    assert env.rewards["toggle"] == pytest.approx(
        -2 + env.infos["toggle"]["share"], abs=1e-9
    )  # a stop too early
    assert env.rewards["align"] == 0.0
    assert not env.infos["align"]["target_met"]


def test_align_after_align_and_relax_after_relax():
    env = NMRTeam(1, sample="oil", eps=0.001)
    episodes = Episodes(env)
    episodes.reset(0)
    acts = {"align": np.full((1, 3), 0.2, np.float32), "relax": np.full((1, 2), 0.1, np.float32)}
    for choice in (1, 0, 0, 1, 1):
        for toggle in (choice, 0):
            episodes.advance({"toggle": np.array([toggle]), **acts})
    shots = env.shots(0)
    assert [shot.pulses > 0 for shot in shots] == [False, True, True, False]
    assert [shot.wait >= 0 for shot in shots] == [True, False, True, True]
    from palestra.envs.nmr.events import run

    np.testing.assert_allclose(env.m, run(env.events(0), env.isochromats(0)).m, atol=1e-12)
    assert env.events(0).duration == pytest.approx(env.books["elapsed"][0], rel=1e-12)


def test_who_goes_on_after_the_target_pays_for_the_rest_of_the_train():
    env = NMRTeam(1, sample="oil", eps=0.25)
    episodes = Episodes(env)
    episodes.reset(0)
    align = env.action.encode(math.pi / 2, math.pi, 300, 0, 0)[None, :3]
    acts = {"align": align, "relax": np.array([[0.0, 1.0]], np.float32)}
    for toggle in (0, 0, 1, 0, 0, 0):
        episodes.advance({"toggle": np.array([toggle]), **acts})
    assert env.books["met"][0]
    stopped = float(env.books["elapsed"][0])
    assert stopped < env.events(0).duration + 1e-12
    whole = sum(shot.events(4e-3, 1e-4, 1e-4).duration for shot in env.shots(0))
    for toggle in (1, 0):
        episodes.advance({"toggle": np.array([toggle]), **acts})
    assert env.books["elapsed"][0] == pytest.approx(whole + 5 * 0.6, rel=1e-6)


@pytest.mark.parametrize("measured", [False, True])
def test_a_classical_team(measured):
    roles = {"toggle": "Alternate", "align": "Echoes", "relax": "Patience"}
    policies = {role: f"palestra.controllers.nmr_team:{name}" for role, name in roles.items()}
    settings = {"sample": "unknown", "eps": 0.07} if measured else {"sample": "oil", "eps": 0.1}
    found = palestra.evaluate(policies, "NMRTeam", episodes=16, seed=0, settings=settings)
    assert found.column("target_met").all()
    assert found.column("terminated").all()
    if measured:
        assert found.column("predicted_error").max() <= 0.07


# --- the instrument -------------------------------------------------------------------------------


def oil(**instrument):
    return {
        "species": [{"fraction": 1.0, "T1": 0.6, "T2": 0.3}],
        "instrument": instrument,
    }


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"phase_step_deg": 50.0}, "phase"),
        ({"duty_max": 0.01, "duty_window": 0.1}, "duty"),
        ({"pulse_model": "finite", "duty_max": 0.01, "duty_window": 0.1}, "duty"),
    ],
)
@pytest.mark.parametrize("env", [NMRAbundance, NMRTeam])
def test_trains_that_the_instrument_cannot_play_are_refused(env, limits, message):
    if limits.get("phase_step_deg") == 50.0:
        with pytest.raises(ValueError, match=message):
            env(1, sample=oil(**limits))
        return
    with pytest.raises(ValueError, match=f"sample.instrument: cannot play trains.*{message}"):
        env(1, sample=oil(**limits))


def test_every_policy_obeys_the_limits():
    """Random shots on a restricted instrument: their event lists break nothing."""
    from palestra.envs.nmr.limits import violations

    limits = {"phase_step_deg": 90.0, "duty_max": 0.05, "duty_window": 0.05}
    env = NMRAbundance(4, sample=oil(**limits), eps=0.01, most_pulses=40)
    episodes = Episodes(env)
    episodes.reset(0)
    rng = np.random.default_rng(0)
    for _ in range(10):
        episodes.advance(rng.uniform(-1, 1, (4, 5)).astype(np.float32))
    for row in range(4):
        assert violations(env.events(row), env.sample.instrument) == []


def test_pulses_of_single_events_obey_them_too():
    from palestra.envs.nmr.env import NMRRelax
    from palestra.envs.nmr.limits import violations

    limits = {"phase_step_deg": 15.0, "duty_max": 0.6, "duty_window": 0.01}
    env = NMRRelax(3, sample=oil(**limits), tau_min=2e-4)
    episodes = Episodes(env)
    episodes.reset(0)
    rng = np.random.default_rng(0)
    for _ in range(4):
        live = ~episodes.ended
        episodes.advance(rng.uniform(-1, 1, (3, 3)).astype(np.float32), live)
    for row in range(3):
        assert violations(env.events(row), env.sample.instrument) == []
        phases = [math.degrees(e.phi) / 15 for e in env.events(row) if e.theta]
        np.testing.assert_allclose(phases, np.round(phases), atol=1e-9)
    with pytest.raises(ValueError, match=r"tau_min: got 0.0001 s between pulses of 0.0001 s"):
        NMRRelax(1, sample=oil(duty_max=0.4))
