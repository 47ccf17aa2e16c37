"""Samples: files, what is refused, and what is drawn from them."""

from __future__ import annotations

import math
import re
import warnings
from dataclasses import asdict, fields, replace

import numpy as np
import pytest
import scipy.special
import scipy.stats

from palestra.envs.nmr.sample import (
    LORENTZIAN_CUT,
    PRESETS,
    SAMPLINGS,
    SHAPES,
    Field,
    Instrument,
    Sample,
    Species,
    Task,
    Vary,
    load_sample,
    normal_quantile,
    parse_sample,
    unit_quantile,
)

PLAIN = "[[species]]\nfraction = 1.0\nT1 = 0.6\nT2 = 0.3\n"
TABLE = "[field]\nb0_shape = 'table'\nb0_fwhm_hz = 0\nb0_table = "
ONE = (Species(1.0, 0.6, 0.3),)
FINE = Instrument(dwell=1e-9, pulse_model="finite")


def drawn(sample: Sample, rows: int = 256):
    ensemble = sample.allocate(rows)
    numbers = np.arange(rows, dtype=np.uint64)
    sample.draw(ensemble, np.ones(rows, np.bool_), np.full(rows, 7, np.uint64), numbers)
    return ensemble


# ---------------------------------------------------------------------------------- what ships


@pytest.mark.parametrize("name", PRESETS)
def test_presets_load_without_a_warning_and_say_that_they_are_illustrative(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sample = load_sample(name)
    assert sample.name == name
    assert "llustrative" in sample.comment


def test_oil_is_what_the_reference_figures_were_made_with():
    oil = load_sample("oil")
    assert (oil.species[0].T1, oil.species[0].T2) == (0.6, 0.3)
    assert (oil.field.b0_fwhm_hz, oil.field.b1_sd, oil.field.n_iso) == (50.0, 0.03, 24)


def test_a_sample_by_path_and_as_an_object(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(PLAIN)
    sample = load_sample(str(path))
    assert sample.species == (Species(1.0, 0.6, 0.3),)
    assert load_sample(sample) is sample


def test_an_unknown_preset_is_refused_with_the_known_ones():
    with pytest.raises(
        ValueError, match=r"sample: got 'oyl', allowed oil, sugar, soil, mixed, rand"
    ):
        load_sample("oyl")


def test_a_missing_file_is_a_missing_file():
    with pytest.raises(FileNotFoundError):
        load_sample("nowhere.toml")


# ------------------------------------------------------------------------------ what is refused


def two_species(second: str) -> str:
    return PLAIN.replace("1.0", "0.5") + "[[species]]\n" + second


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (PLAIN.replace("0.6", "0.0"), "species[0].T1: got 0.0, allowed 1e-09 to 1e+09 s"),
        (PLAIN.replace("0.6", "-1"), "species[0].T1: got -1, allowed 1e-09 to 1e+09 s"),
        (PLAIN.replace("0.6", "nan"), "species[0].T1: got nan, allowed 1e-09 to 1e+09 s"),
        (PLAIN.replace("0.6", "'long'"), "species[0].T1: got 'long', allowed 1e-09 to 1e+09 s"),
        (PLAIN.replace("0.3", "0"), "species[0].T2: got 0, allowed 1e-09 to 1.2 s (2 T1)"),
        (
            PLAIN.replace("0.3", "1.3"),
            "species[0].T2: got 1.3, allowed 1e-09 to 1.2 s (2 T1)",
        ),
        (PLAIN.replace("1.0", "0.9"), "species: got fractions that sum to 0.9, allowed a sum of 1"),
        (PLAIN.replace("1.0", "-1.0"), "species[0].fraction: got -1.0, allowed 0 to 1"),
        (two_species("fraction = 0.6\nT1 = 1\nT2 = 1\n"), "fractions that sum to 1.1"),
        (
            two_species("fraction = 0.5\nT1 = 1\n"),
            "species[1].T2: missing, allowed a number",
        ),
        (
            PLAIN + "T3 = 1\n",
            "species[0].T3: unknown; allowed fraction, T1, T2, shift_hz, J_hz, n_H",
        ),
        (PLAIN + "n_H = 4\n", "species[0].n_H: got 4, allowed an integer 0 to 3"),
        (
            "colour = 'red'\n" + PLAIN,
            "colour: unknown; allowed species, field, instrument, task, vary",
        ),
        ("name = 3\n" + PLAIN, "name: got 3, allowed a string"),
        ("field = 3\n" + PLAIN, "field: got 3, allowed a table"),
        ("", "species: got None, allowed one or more tables [[species]]"),
        ("= 3", "not TOML"),
        (PLAIN + "[field]\nb0_fwhm_hz = -5", "field.b0_fwhm_hz: got -5, allowed 0 to 1e+06 Hz"),
        (
            PLAIN + "[field]\nb0_shape = 'round'",
            "field.b0_shape: got 'round', allowed gaussian, lorentzian, uniform, table",
        ),
        (
            PLAIN + "[field]\nsampling = 'x'",
            "field.sampling: got 'x', allowed stratified, quantile, equispaced",
        ),
        (PLAIN + "[field]\nb1_sd = 0.5", "field.b1_sd: got 0.5, allowed 0 to 0.2"),
        (PLAIN + "[field]\nn_iso = 0", "field.n_iso: got 0, allowed an integer 1 to 65536"),
        (PLAIN + "[field]\nn_iso = true", "field.n_iso: got True, allowed an integer"),
        (PLAIN + "[field]\nreciprocity = 1", "field.reciprocity: got 1, allowed true or false"),
        (
            PLAIN + "[field]\nb0_shape = 'table'\nb0_fwhm_hz = 0",
            "field.b0_table: got (), allowed two or more rows",
        ),
        (
            PLAIN + "[field]\nb0_shape = 'table'\nb0_table = [[0, 1], [1, 1]]",
            "field.b0_fwhm_hz: got 50.0, allowed 0",
        ),
        (
            PLAIN + "[field]\nb0_shape = 'table'\nb0_fwhm_hz = 0\nb0_table = [[1, 1], [0, 1]]",
            "field.b0_table",
        ),
        (
            PLAIN + "[field]\nb0_shape = 'table'\nb0_fwhm_hz = 0\nb0_table = [[0, 1], [1, -1]]",
            "field.b0_table",
        ),
        (
            PLAIN + "[field]\nb0_table = [[0, 1], [1, 1]]",
            "field.b0_table: got ((0, 1), (1, 1)) with b0_shape 'gaussian', allowed rows only",
        ),
        (
            PLAIN + "[field]\nb0_shape = 'uniform'\nsampling = 'gauss-hermite'",
            "field.sampling: got 'gauss-hermite'",
        ),
        (PLAIN + "[instrument]\nB0 = 0", "instrument.B0: got 0, allowed 1e-09 to 100 T"),
        (
            PLAIN + "[instrument]\nisotope = '12C'",
            "instrument.isotope: got '12C', allowed 1H, 13C, 19F, 31P",
        ),
        (
            PLAIN + "[instrument]\nnu1_max_hz = 0",
            "instrument.nu1_max_hz: got 0, allowed 1 to 1e+07 Hz",
        ),
        (
            PLAIN + "[instrument]\ndead_time = -1e-6",
            "instrument.dead_time: got -1e-06, allowed 0 to 1e+06 s",
        ),
        (
            PLAIN + "[instrument]\ndwell = 0.01",
            "instrument.dwell: got 0.01, allowed at most 0.00914 s",
        ),
        (PLAIN + "[instrument]\neps1 = 0", "instrument.eps1: got 0, allowed 1e-09 to 1e+09"),
        (PLAIN + "[instrument]\nduty_max = 0", "instrument.duty_max: got 0, allowed 1e-09 to 1"),
        (PLAIN + "[instrument]\nduty_window = 0", "instrument.duty_window: got 0, allowed 1e-09"),
        (
            PLAIN + "[instrument]\nphase_step_deg = 7",
            "instrument.phase_step_deg: got 7, allowed 0 (any phase), or a whole part of 360",
        ),
        (
            PLAIN + "[instrument]\npulse_model = 'soft'",
            "instrument.pulse_model: got 'soft', allowed hard, finite",
        ),
        (PLAIN + "[task]\neps = 0", "task.eps: got 0, allowed 1e-09 to 1e+09"),
        (PLAIN + "[task]\neps = -0.1", "task.eps: got -0.1, allowed 1e-09 to 1e+09"),
        (
            PLAIN + "[task]\ninformation = 'all'",
            "task.information: got 'all', allowed known, marginal",
        ),
        (
            PLAIN + "[vary]\nT1 = [2.0, 1.0]",
            "vary.T1: got (2.0, 1.0), allowed (low, high), low <= high",
        ),
        (PLAIN + "[vary]\nT2_over_T1 = [0.1, 3.0]", "vary.T2_over_T1: got (0.1, 3.0), allowed"),
        (PLAIN + "[vary]\nT1 = 3", "vary.T1: got 3, allowed (low, high)"),
        (
            two_species("fraction = 0.5\nT1 = 1\nT2 = 1\n[vary]\nT1 = [1, 2]"),
            "vary: got 2 species, allowed only with one",
        ),
    ],
)
def test_a_bad_value_is_refused_by_file_field_value_and_range(text, message):
    with pytest.raises(ValueError, match="^mine.toml: .*" + re.escape(message)):
        parse_sample(text, "mine.toml")


HUGE = str(10**400)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        # times whose rates, products or squares are no float64
        (PLAIN.replace("0.6", "1e-320").replace("0.3", "1e-320"), "species[0].T1: got 1e-320,"),
        (PLAIN.replace("0.6", "1.7e308"), "species[0].T1: got 1.7e+308, allowed 1e-09 to 1e+09 s"),
        (PLAIN.replace("0.3", "1e-320"), "species[0].T2: got 1e-320, allowed 1e-09 to 1.2 s"),
        (PLAIN + "[vary]\nT1 = [1e-320, 1.0]", "vary.T1: got (1e-320, 1.0), allowed (low, high)"),
        (PLAIN + "[vary]\nT1 = [1e-3, inf]", "vary.T1: got (0.001, inf), allowed (low, high)"),
        (PLAIN + "[vary]\nT2_over_T1 = [1e-320, 1.0]", "vary.T2_over_T1: got (1e-320, 1.0),"),
        (
            PLAIN + "[vary]\nT1 = [1e-6, 1.0]\nT2_over_T1 = [1e-6, 1.0]",
            "vary: got ranges that reach down to T2 = 1e-12 s, allowed T2 from 1e-09 s",
        ),
        (PLAIN + "[vary]\nb0_fwhm_hz = [0, 1e300]", "vary.b0_fwhm_hz: got (0, 1e+300), allowed"),
        (PLAIN + "shift_hz = 1e308", "species[0].shift_hz: got 1e+308, allowed -1e+06 to 1e+06 Hz"),
        (PLAIN + "J_hz = -1e308", "species[0].J_hz: got -1e+308, allowed -1e+06 to 1e+06 Hz"),
        (PLAIN + "[field]\nb0_fwhm_hz = 1e308", "field.b0_fwhm_hz: got 1e+308, allowed 0 to 1e+06"),
        (PLAIN + "[instrument]\nB0 = 1e308", "instrument.B0: got 1e+308, allowed 1e-09 to 100 T"),
        (
            PLAIN + "[instrument]\ntemperature = 1e-320",
            "instrument.temperature: got 1e-320, allowed 0.001 to 10000 K",
        ),
        (
            PLAIN + "[instrument]\nnu1_max_hz = 1e-300",
            "instrument.nu1_max_hz: got 1e-300, allowed 1 to 1e+07 Hz",
        ),
        (
            PLAIN.replace("0.3", "1e-9") + "[instrument]\nnu1_max_hz = 5\npulse_model = 'finite'",
            "instrument.nu1_max_hz: got 5, allowed more with pulse_model 'finite', T2 down",
        ),
        (
            PLAIN + "[instrument]\ndead_time = 1e308",
            "instrument.dead_time: got 1e+308, allowed",
        ),
        (PLAIN + "[instrument]\ndwell = 1e-320", "instrument.dwell: got 1e-320, allowed 1e-09 to"),
        (PLAIN + "[instrument]\neps1 = 1e-200", "instrument.eps1: got 1e-200, allowed 1e-09 to"),
        (PLAIN + "[task]\neps = 1e-200", "task.eps: got 1e-200, allowed 1e-09 to 1e+09"),
        (PLAIN + "[task]\nlog_T1_sd = 1e300", "task.log_T1_sd: got 1e+300, allowed 0 to 100"),
        (PLAIN + "[task]\nmax_time = 1e300", "task.max_time: got 1e+300, allowed 1e-09 to 1e+09"),
        # integers that no float holds, or that no message should
        (PLAIN.replace("0.6", HUGE), "species[0].T1: got 1000000"),
        (PLAIN.replace("0.6", f"0x1{'0' * 5000}"), "species[0].T1: got an int too long to show"),
        (PLAIN.replace("0.6", "1" * 5000), "got an integer of more than 4300 digits, allowed numb"),
        (PLAIN + f"n_H = {HUGE}", "species[0].n_H: got 10000"),
        (PLAIN + f"[field]\nb1_sd = {HUGE}", "field.b1_sd: got 1000"),
        (PLAIN + f"[vary]\nT1 = [1, {HUGE}]", "vary.T1: got (1, 10000"),
        (PLAIN + TABLE + f"[[0, 1], [{HUGE}, 1]]", "field.b0_table[1][0]: got 1000"),
        (PLAIN + TABLE + f"[[0, 1], [1, {HUGE}]]", "field.b0_table[1][1]: got 1000"),
        # nesting
        (PLAIN + f"[field]\nb0_table = {'[' * 3000}{']' * 3000}", "nested too deeply, allowed"),
        (PLAIN + f"[field]\n{'b0_table.' * 3000}x = 1", "field.b0_table: got a dict too long"),
        # tables of offsets
        (
            PLAIN + TABLE + "[[0, 1], [1, 1, 1]]",
            "field.b0_table[1]: got (1, 1, 1), allowed [",
        ),
        (
            PLAIN + TABLE + "[[0, 1], [1]]",
            "field.b0_table[1]: got (1,), allowed [offset in Hz,",
        ),
        (PLAIN + TABLE + "[0, 1]", "field.b0_table[0]: got 0, allowed [offset in Hz, density]"),
        (
            PLAIN + TABLE + "['ab', 'cd']",
            "field.b0_table[0]: got 'ab', allowed [offset in Hz",
        ),
        (PLAIN + TABLE + "[['a', 1], [1, 1]]", "field.b0_table[0][0]: got 'a', allowed -1e+06 to"),
        (PLAIN + TABLE + "[[0, true], [1, 1]]", "field.b0_table[0][1]: got True, allowed 0 to"),
        (PLAIN + TABLE + "[[0, 1]]", "field.b0_table: got ((0, 1),), allowed two or more rows"),
        (PLAIN + TABLE + "3", "field.b0_table: got 3, allowed two or more rows"),
        (PLAIN + TABLE + "'rows'", "field.b0_table: got 'rows', allowed two or more rows"),
        (
            PLAIN + TABLE + "[[1, 1], [0, 1]]",
            "field.b0_table[1][0]: got 0, allowed at least 1e-06 Hz",
        ),
        (
            PLAIN + TABLE + "[[0, 1], [0, 1]]",
            "field.b0_table[1][0]: got 0, allowed at least 1e-06 Hz",
        ),
        (PLAIN + TABLE + "[[0, 1], [1, -1]]", "field.b0_table[1][1]: got -1, allowed 0 to"),
        (
            PLAIN + TABLE + "[[0, 0], [1, 0]]",
            "field.b0_table: got ((0, 0), (1, 0)), allowed",
        ),
        (PLAIN + TABLE + "[[0, nan], [1, 1]]", "field.b0_table[0][1]: got nan, allowed 0 to"),
        (PLAIN + TABLE + "[[-inf, 1], [1, 1]]", "field.b0_table[0][0]: got -inf, allowed -1e+06"),
        (PLAIN + TABLE + "[[0, 1], [1, inf]]", "field.b0_table[1][1]: got inf, allowed 0 to"),
        # kinds
        (PLAIN + "[field]\nsampling = ['quantile']", "field.sampling: got ('quantile',), allowed"),
        (PLAIN + "[field]\nn_iso = 8.0", "field.n_iso: got 8.0, allowed an integer 1 to 65536"),
        ("species = 'oil'", "species: got 'oil', allowed one or more tables [[species]]"),
        ("species = [3]", "species[0]: got 3, allowed a table"),
    ],
)
def test_an_odd_value_is_refused_as_plainly_as_any_other(text, message):
    with pytest.raises(ValueError, match="^mine.toml: " + re.escape(message)) as said:
        parse_sample(text, "mine.toml")
    assert len(str(said.value)) < 400


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Sample(Species(1.0, 0.6, 0.3)), "species: got Species(.*), allowed a tuple of"),
        (lambda: Sample(("oil",)), r"species\[0\]: got 'oil', allowed a Species"),
        (lambda: Sample(None), "species: got None, allowed a tuple of one or more Species"),
        (lambda: Sample(ONE, field=None), "field: got None, allowed a Field"),
        (
            lambda: Sample(ONE, instrument=Field()),
            r"instrument: got Field\(.*, allowed an Instr",
        ),
        (lambda: Sample(ONE, task={}), "task: got {}, allowed a Task"),
        (lambda: Sample(ONE, vary=()), r"vary: got \(\), allowed a Vary"),
        (lambda: Sample(ONE, name=3), "name: got 3, allowed a string"),
        (
            lambda: load_sample(3),
            "sample: got 3, allowed oil, .* path of a TOML file, a mapping",
        ),
        (lambda: load_sample(None), "sample: got None, allowed oil"),
        (lambda: load_sample(b"oil"), "sample: got b'oil', allowed oil"),
        (lambda: parse_sample(b"", "mine.toml"), "text: got b'', allowed a string of TOML"),
    ],
)
def test_a_value_of_another_kind_is_refused_by_argument(build, message):
    with pytest.raises(TypeError, match=f"^{message}"):
        build()


@pytest.mark.parametrize("name", ["oil\0.toml", ""])
def test_a_name_that_no_file_has_is_refused(name):
    with pytest.raises(ValueError, match=r"^sample: got .*, allowed oil"):
        load_sample(name)


def test_a_file_in_another_encoding_is_refused_by_name(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_bytes(PLAIN.encode() + "comment = 'Öl'".encode("latin-1"))
    said = rf"^{re.escape(str(path))}: not UTF-8: .* at byte \d+, allowed a TOML file in UTF-8"
    with pytest.raises(ValueError, match=said):
        load_sample(path)


def test_numbers_of_numpy_are_numbers():
    sample = Sample((Species(np.float64(1), np.int8(100), np.float32(0.5), n_H=np.int8(1)),))
    assert sample.species[0].T1 * 2 == 200
    field = Field(np.float64(50), b1_sd=np.float32(0), n_iso=np.int64(8), reciprocity=np.True_)
    assert field == Field(50.0, b1_sd=0.0, n_iso=8, reciprocity=True)
    assert not any(isinstance(getattr(field, f.name), np.generic) for f in fields(field))
    rows = np.array([[0.0, 1.0], [1.0, 1.0]])
    table = Field(0.0, "table", rows, sampling="quantile")
    assert table.b0_table == ((0.0, 1.0), (1.0, 1.0))
    assert Vary(T1=np.array([1, 2])).T1 == (1.0, 2.0)
    with pytest.raises(ValueError, match="n_iso: got True, allowed an integer"):
        Field(n_iso=np.True_)


@pytest.mark.parametrize("name", PRESETS)
def test_the_tables_of_a_sample_are_a_sample(name):
    """What a run folder can hold, for JSON has no Sample."""
    sample = load_sample(name)
    assert load_sample(asdict(sample)) == sample
    with pytest.raises(ValueError, match=r"^sample: field.n_iso: got 0, allowed"):
        load_sample({**asdict(sample), "field": {"n_iso": 0}})


def test_the_ends_of_every_range_give_finite_figures():
    for T1, T2 in ((1e-9, 1e-9), (1e9, 1e-9), (1e9, 2e9), (1e-9, 2e-9)):
        for eps1, eps in ((1e-9, 1e9), (1e9, 1e-9)):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # T2 above T1
                one = (Species(1.0, T1, T2),)
            sample = Sample(one, instrument=Instrument(eps1=eps1), task=Task(eps=eps))
            assert math.isfinite(sample.N0)
            assert math.isfinite(sample.T_bound)
    for B0, temperature in ((1e-9, 1e4), (100.0, 1e-3)):
        assert 0.0 < Instrument(B0=B0, temperature=temperature).polarisation <= 1.0


def test_a_precision_worse_than_one_shot_needs_no_time():
    assert parse_sample(PLAIN + "[task]\neps = 0.5", "mine.toml").T_bound == 0.0


# ---------------------------------------------------------------------------- what is warned of


def test_t2_above_t1_is_accepted_with_a_warning():
    with pytest.warns(UserWarning, match=r"mine.toml: T2 = 0.7 s exceeds T1 = 0.6 s"):
        parse_sample(PLAIN.replace("0.3", "0.7"), "mine.toml")


def test_hard_pulses_with_large_offsets_are_warned_of():
    """Pitfall 2: offsets beyond 0.02 of the nutation rate."""
    with pytest.warns(
        UserWarning, match=r"'hard' ignores offsets during pulses.* 0.044 of the nut"
    ):
        parse_sample(PLAIN + "[field]\nb0_fwhm_hz = 200", "mine.toml")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parse_sample(
            PLAIN + "[field]\nb0_fwhm_hz = 200\n[instrument]\npulse_model = 'finite'", "mine.toml"
        )


@pytest.mark.parametrize(("n", "revival"), [(16, 0.075), (32, 0.155), (64, 0.315)])
def test_equispaced_isochromats_revive_and_are_warned_of(n, revival):
    """Pitfall 3: 2 pi / spacing; over +-100 Hz at 75, 155, 315 ms."""
    field = Field(b0_fwhm_hz=200 / 3, n_iso=n, sampling="equispaced")
    assert field.revival_time == pytest.approx(revival, rel=1e-6)
    sample = Sample((Species(1.0, 0.6, 0.3),), field=field)
    x = drawn(sample, 1).offset_hz[0]
    weight = sample.allocate(1).weight
    assert abs(weight @ np.exp(2j * np.pi * x * revival)) > 0.999  # a fake echo
    with pytest.warns(
        UserWarning, match=r"field.n_iso: .* rephase after .* set n_iso = (\d+)"
    ) as said:
        sample.warn_of_revival(0.5)
    needed = int(re.search(r"n_iso = (\d+)", str(said[0].message))[1])
    assert Field(b0_fwhm_hz=200 / 3, n_iso=needed, sampling="equispaced").revival_time >= 0.5


def test_stratified_isochromats_do_not_revive():
    x = drawn(load_sample("oil"), 200).offset_hz
    for time in np.linspace(0.06, 2.0, 50):
        assert abs(np.exp(2j * np.pi * x * time).mean(1)).mean() < 0.3


WIDE = {"b0_fwhm_hz": (20.0, 400.0)}  # as wide as the next two: half a band of 400 * 1.0939 Hz


@pytest.mark.parametrize("nominal", [0.0, 20.0, 400.0, 2000.0])
def test_what_is_checked_holds_for_the_widest_magnet_that_can_be_drawn(nominal):
    """An episode's width comes from `vary` alone, whatever `b0_fwhm_hz` says."""
    field, vary = Field(b0_fwhm_hz=nominal), Vary(**WIDE)
    finite = Instrument(pulse_model="finite")
    assert Sample(ONE, field, finite, vary=vary).band_hz == pytest.approx(437.5, abs=0.1)
    with pytest.raises(ValueError, match=r"instrument.dwell: got 0.0012, allowed at most 0.00114"):
        Sample(ONE, field, replace(finite, dwell=1.2e-3), vary=vary)
    with pytest.warns(UserWarning, match=r"they reach 0.088 of the nutation rate"):
        Sample(ONE, field, vary=vary)
    grid = replace(field, sampling="equispaced", n_iso=7)  # 200 Hz apart, so a revival after 5 ms
    with pytest.warns(UserWarning, match=r"rephase after 0.005 s and fake an echo within 0.006 s"):
        Sample(ONE, grid, finite, vary=vary).warn_of_revival(6e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Sample(ONE, grid, finite, vary=vary).warn_of_revival(4.9e-3)


def test_a_warning_of_revival_asks_for_no_more_isochromats_than_are_allowed():
    sample = Sample(ONE, Field(n_iso=16, sampling="gauss-hermite"))
    with pytest.warns(UserWarning, match="within 10 s; set sampling 'stratified'"):
        sample.warn_of_revival(10.0)


# --------------------------------------------------------------------------------- what is drawn


SHAPED = {
    "gaussian": {},
    "lorentzian": {},
    "uniform": {},
    "table": {"b0_fwhm_hz": 0.0, "b0_table": ((-5.0, 0.0), (0.0, 1.0), (5.0, 0.0))},
}


FEW = {"gaussian": (1,), "lorentzian": (1,), "uniform": (1, 2, 3, 5), "table": (1, 2, 3)}


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 32])
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("shape", SHAPES)
def test_weights_are_shares_of_the_spins_or_the_sampling_is_refused(shape, sampling, n):
    arguments = {"b0_shape": shape, "sampling": sampling, "n_iso": n, **SHAPED[shape]}
    if (sampling == "gauss-hermite" and shape != "gaussian") or (
        sampling == "equispaced" and n in FEW[shape]
    ):
        with pytest.raises(ValueError, match=r"^(n_iso|sampling): got .* allowed"):
            Field(**arguments)
        return
    field = Field(**arguments)
    ensemble = drawn(Sample(ONE, field, FINE), 2)
    assert (ensemble.weight >= 0).all()
    assert ensemble.weight.sum() == pytest.approx(1.0, rel=1e-12)
    assert np.isfinite(ensemble.offset_hz).all()
    if n > 1:  # one isochromat with all the weight would not dephase
        assert np.ptp(ensemble.offset_hz[0][ensemble.weight > 0]) > 0
    assert abs(ensemble.offset_hz).max() <= Sample(ONE, field, FINE).reach_hz


@pytest.mark.parametrize(
    ("shape", "n", "enough"),
    [("uniform", 2, 4), ("uniform", 3, 4), ("uniform", 5, 6), ("table", 2, 4), ("table", 3, 4)],
)
def test_a_grid_that_misses_the_spins_is_refused_with_one_that_does_not(shape, n, enough):
    """None where the density is above 0 gave weights of 0/0; a single one does not dephase."""
    said = rf"n_iso: got {n} with .*'{shape}', which leaves .* allowed n_iso = {enough}, or sampl"
    with pytest.raises(ValueError, match=said):
        Field(b0_shape=shape, sampling="equispaced", n_iso=n, **SHAPED[shape])
    Field(b0_shape=shape, sampling="equispaced", n_iso=enough, **SHAPED[shape])


def test_weights_of_a_grid_are_densities():
    x, w = Field(b0_shape="lorentzian", sampling="equispaced", n_iso=3).nodes()
    assert x.tolist() == [-1.5, 0.0, 1.5]
    np.testing.assert_allclose(w, np.array([0.1, 1.0, 0.1]) / 1.2, rtol=1e-15)
    _, w = Field(sampling="equispaced", n_iso=3).nodes()
    np.testing.assert_allclose(w[0] / w[1], 2.0**-9, rtol=1e-14)  # three half widths out


@pytest.mark.parametrize("density", [5e-324, 1e-200, 1.0, 1e308])
def test_the_unit_of_a_table_does_not_matter(density):
    table = ((-20.0, density), (0.0, density), (10.0, density))
    field = Field(b0_fwhm_hz=0.0, b0_shape="table", b0_table=table)
    np.testing.assert_allclose(field.cumulative_table[2], [0.0, 2 / 3, 1.0], rtol=1e-15)
    x, w = replace(field, sampling="equispaced", n_iso=4).nodes()
    assert x.tolist() == [-20, -10, 0, 10]
    np.testing.assert_allclose(w, 0.25, rtol=1e-15)


def test_the_tail_of_a_lorentzian_ends():
    u = np.array([2.0**-60, 1e-9, 1e-3])
    tail = [unit_quantile(1, p, np.zeros(0), np.zeros(0), np.zeros(0)) for p in u]
    assert tail[:2] == [-LORENTZIAN_CUT] * 2
    assert tail[2] == pytest.approx(-0.5 / math.tan(math.pi * 1e-3))


def test_normal_quantile_matches_scipy():
    p = np.concatenate([np.logspace(-18, -1, 300), np.linspace(0.1, 1 - 1e-12, 300)])
    got = np.array([normal_quantile(q) for q in p])
    np.testing.assert_allclose(got, scipy.special.ndtri(p), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(
    ("shape", "distribution"),
    [
        ("gaussian", scipy.stats.norm(scale=50 / (2 * math.sqrt(2 * math.log(2))))),
        ("lorentzian", scipy.stats.cauchy(scale=25)),
        ("uniform", scipy.stats.uniform(-25, 50)),
    ],
)
def test_offsets_follow_their_line_shape(shape, distribution):
    field = Field(b0_shape=shape, b1_sd=0.0, n_iso=8)
    wide = Instrument(pulse_model="finite", dwell=1e-6)
    ensemble = drawn(Sample((Species(1.0, 0.6, 0.3),), field, wide), 500)
    assert scipy.stats.kstest(ensemble.offset_hz.ravel(), distribution.cdf).pvalue > 0.01
    # stratified: one isochromat in each eighth of the distribution, in every row
    stratum = np.floor(distribution.cdf(ensemble.offset_hz) * 8)
    assert (stratum == np.arange(8)).all()


def test_offsets_follow_a_table():
    table = ((-20.0, 1.0), (0.0, 1.0), (10.0, 3.0))
    field = Field(b0_fwhm_hz=0.0, b0_shape="table", b0_table=table, n_iso=8)
    x = drawn(Sample((Species(1.0, 0.6, 0.3),), field), 2000).offset_hz
    assert (x < 0).mean() == pytest.approx(0.5, abs=0.01)  # masses 20 and 20
    assert x.min() > -20
    assert x.max() < 10


@pytest.mark.parametrize("rows", [((-5.0, 0.0), (0.0, 2.0), (5.0, 0.0)), ((-6.0, 1.0), (9.0, 5.0))])
def test_the_density_of_a_table_is_linear_between_its_rows(rows):
    """A triangle, and a trapezoid: not the mean density of each cell."""
    offset, density = np.array(rows).T
    x = np.linspace(offset[0], offset[-1], 100_001)
    steps = np.interp((x[1:] + x[:-1]) / 2, offset, density)
    cumulative = np.concatenate([[0.0], np.cumsum(steps)]) / steps.sum()
    field = Field(b0_fwhm_hz=0.0, b0_shape="table", b0_table=rows, n_iso=8)
    for u in (0.001, 0.005, 0.125, 0.3, 0.5, 0.9, 0.999):
        assert field.quantile(u) == pytest.approx(np.interp(u, cumulative, x), abs=1e-3)
    drawn_hz = drawn(Sample(ONE, field), 500).offset_hz.ravel()
    assert scipy.stats.kstest(drawn_hz, lambda o: np.interp(o, x, cumulative)).pvalue > 0.01


def test_transmit_field_has_its_spread_and_is_independent_of_the_offset():
    ensemble = drawn(load_sample("oil"), 500)
    assert ensemble.b1.mean() == pytest.approx(1.0, abs=1e-3)
    assert ensemble.b1.std() == pytest.approx(0.03, rel=0.02)
    assert abs(np.corrcoef(ensemble.b1.ravel(), ensemble.offset_hz.ravel())[0, 1]) < 0.03


def test_gauss_hermite_sampling_is_exact_for_the_gaussian_decay():
    field = Field(n_iso=24, sampling="gauss-hermite")
    ensemble = drawn(Sample((Species(1.0, 0.6, 0.3),), field), 1)
    sd = 2 * math.pi * 50 / (2 * math.sqrt(2 * math.log(2)))
    for time in (1e-3, 5e-3, 10e-3):
        got = ensemble.weight @ np.exp(2j * np.pi * ensemble.offset_hz[0] * time)
        assert got == pytest.approx(math.exp(-0.5 * (sd * time) ** 2), abs=1e-6)


def test_varying_samples_stay_in_their_ranges():
    ensemble = drawn(load_sample("random"), 2000)
    T1, T2 = 1 / ensemble.R1[:, 0], 1 / ensemble.R2[:, 0]
    assert T1.min() >= 0.3
    assert T1.max() <= 2.0
    uniform = scipy.stats.uniform(math.log(0.3), math.log(2.0 / 0.3))
    assert scipy.stats.kstest(np.log(T1), uniform.cdf).pvalue > 0.01
    ratio = scipy.stats.uniform(math.log(0.1), math.log(10))
    assert scipy.stats.kstest(np.log(T2 / T1), ratio.cdf).pvalue > 0.01


def test_a_multiplet_is_a_set_of_binomial_lines():
    """1.4: the envelope of the free induction decay is cos^n(pi J t)."""
    quiet = Field(b0_fwhm_hz=0.0, b1_sd=0.0, n_iso=1)
    for n in range(4):
        finite = Instrument(pulse_model="finite")
        sample = Sample((Species(1.0, 0.6, 0.3, J_hz=125.0, n_H=n),), quiet, finite)
        ensemble = drawn(sample, 1)
        for time in (1e-3, 2.7e-3):
            got = ensemble.weight @ np.exp(2j * np.pi * ensemble.offset_hz[0] * time)
            assert got == pytest.approx(math.cos(math.pi * 125 * time) ** n, abs=1e-12)


def test_reciprocity_weights_the_signal_by_the_transmit_field():
    field = Field(reciprocity=True, n_iso=8)
    ensemble = drawn(Sample((Species(1.0, 0.6, 0.3),), field), 4)
    expected = ensemble.weight * ensemble.b1
    expected /= expected.sum(1, keepdims=True)
    np.testing.assert_allclose(ensemble.receive, expected, rtol=1e-13)


# ------------------------------------------------------------------------------- derived figures


def test_time_bound_of_the_oil_sample():
    """2 T1 ((eps1/eps)^2 - 1) = 42.000 s for eps1 0.3, eps 0.05, T1 0.6."""
    assert load_sample("oil").T_bound == pytest.approx(42.0, rel=1e-12)


@pytest.mark.parametrize(
    ("isotope", "B0", "expected"),
    [
        ("13C", 0.05, 4.30926e-8),
        ("13C", 0.5, 4.30926e-7),
        ("13C", 1.0, 8.61851e-7),
        ("13C", 1.4, 1.20659e-6),
        ("1H", 0.5, 1.71340e-6),
    ],
)
def test_polarisation(isotope, B0, expected):
    """Tanh(gamma hbar B0 / 2 k T) with CODATA constants, 298.15 K."""
    assert Instrument(B0=B0, isotope=isotope).polarisation == pytest.approx(expected, rel=1e-4)


def test_magnetisation_of_a_mole_of_13c_spins_in_a_litre():
    got = Instrument().equilibrium_magnetisation(6.02214076e23 * 1e3)
    assert got == pytest.approx(9.20670e-7, rel=1e-4)
    assert Instrument().larmor_hz == pytest.approx(5.354e6, rel=1e-4)
