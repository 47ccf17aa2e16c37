"""A sample from data: the truth lies within the stated error, as often as it should."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest

from palestra.envs.nmr.information import noise_density
from palestra.envs.nmr.relaxation_fits import fit_echo_train, fit_inversion_recovery
from palestra.envs.nmr.sample import load_sample, parse_sample
from palestra.envs.nmr.sample_from_data import check_reference, fit_sample

from .measured import EFFICIENCY, measured

OIL, SOIL = (0.6, 0.3, 50.0), (2.0, 0.01, 200.0)
SIGMA, SHIFT, DWELL = 0.01, 3.0, 2e-4


def fitted(*arguments, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fit_sample(*arguments, **options)


@pytest.mark.parametrize("shape", ["gaussian", "lorentzian"])
@pytest.mark.parametrize("sample", [OIL, SOIL], ids=["oil", "soil"])
def test_the_truth_lies_within_the_stated_errors_as_often_as_it_should(sample, shape):
    """Pulls of 50 seeds are standard normal: mean within 3.3 / sqrt(50), spread within 30 %."""
    pulls, right, rejected = [], 0, 0
    truth = {
        "log_T1": math.log(sample[0]), "efficiency": EFFICIENCY, "log_T2": math.log(sample[1]),
        "shift_hz": SHIFT, "fwhm_hz": sample[2],
    }  # fmt: skip
    for seed in range(50):
        found = fitted(measured(SIGMA, seed, *sample, shape=shape))
        fits = {"log_T1": found.T1, "efficiency": found.T1, "log_T2": found.T2}
        each = [(name, fits.get(name, found.line.fit)) for name in truth]
        pulls.append([(fit.values[name] - truth[name]) / fit.sd[name] for name, fit in each])
        right += found.line.shape == shape
        rejected += len(found.lacks_fit)
    assert np.abs(np.mean(pulls, axis=0)).max() < 3.3 / math.sqrt(50)
    assert np.abs(np.std(pulls, axis=0) - 1.0).max() < 0.3
    assert right >= 49
    assert rejected <= 2  # of 150, at p < 0.001


@pytest.mark.parametrize("seed", range(3))
def test_values_without_an_imaginary_part_do_as_well(seed):
    ir, cpmg, _ = measured(SIGMA, seed, *OIL, complex_values=False)
    T1, T2 = fit_inversion_recovery(ir), fit_echo_train(cpmg)
    assert T1.values["log_T1"] == pytest.approx(math.log(0.6), abs=4 * T1.sd["log_T1"])
    assert T2.values["log_T2"] == pytest.approx(math.log(0.3), abs=4 * T2.sd["log_T2"])
    assert math.isnan(T1.p)  # 16 uneven real values tell nothing of their noise
    assert T2.p > 1e-3


def test_magnitudes_of_an_inversion_recovery_are_refused():
    ir = measured(SIGMA, 0, *OIL, complex_values=False)[0]
    with pytest.raises(ValueError, match=r"ir\.csv: got values that fall and rise again"):
        fit_inversion_recovery(replace(ir, values=abs(ir.values)))


def test_the_error_of_one_shot_is_that_of_its_definition():
    """N0 = sigma^2 dwell = T2 eps1^2 / 2, whatever the gain; four scans averaged halve sigma."""
    data = measured(SIGMA, 0, *OIL)
    eps1 = fitted(data).eps1
    assert noise_density(0.3, eps1) == pytest.approx(SIGMA**2 * DWELL, rel=0.15)
    assert fitted(data, scans=4).eps1 == pytest.approx(2 * eps1, rel=1e-12)


def test_two_species_are_seen_not_to_fit():
    data = measured(SIGMA, 0, *OIL)
    slow = measured(SIGMA, 1, 3.0, 0.06, 50.0, te=0.015)
    mixed = [
        replace(a, values=a.values + b.values) for a, b in zip(data[:2], slow[:2], strict=True)
    ]
    assert mixed[1].times == pytest.approx(slow[1].times)
    assert fit_echo_train(mixed[1]).lacks_fit
    assert not fit_echo_train(data[1]).lacks_fit


def test_a_sample_file_says_where_it_comes_from_and_can_be_read():
    found = fitted(measured(SIGMA, 0, *OIL), isotope="1H", B0=1.0, name="mine")
    text = found.to_toml()
    assert f"#   ir.csv (inversion recovery, 16 values), SHA-256 {'0' * 64}" in text
    again = parse_sample(text, "mine.toml")
    assert again == found.sample == load_sample(found.document)
    assert (again.name, again.instrument.isotope, again.instrument.B0) == ("mine", "1H", 1.0)
    assert again.task.log_T1_sd == found.T1.sd["log_T1"]
    assert again.task.log_T2_sd == found.T2.sd["log_T2"]
    assert pytest.approx(0.6, rel=0.05) == again.species[0].T1


def test_the_field_comes_from_the_frequency_of_the_file():
    *rest, fid = measured(SIGMA, 0, *OIL)
    found = fitted([*rest, replace(fid, frequency_mhz=10.7084, isotope="13C")])
    assert pytest.approx(1.0, rel=1e-5) == found.sample.instrument.B0


def test_a_reference_on_the_wrong_side_is_refused():
    fid = measured(SIGMA, 0, 0.6, 0.3, 5.0, shift_hz=12.5)[2]
    check_reference(fid, 12.5)
    with pytest.raises(ValueError, match=r"stands at -12\.5 Hz, allowed 12\.5 Hz: conjugate your"):
        check_reference(fid.conjugated(), 12.5)
    with pytest.raises(ValueError, match="no reference peak at 300 Hz"):
        check_reference(fid, 300.0)
    with pytest.raises(ValueError, match=r"reference_hz: got 0\.0, allowed an offset other than 0"):
        check_reference(fid, 0.0)


def test_a_clock_that_starts_late_is_set_right():
    *rest, fid = measured(SIGMA, 0, *OIL)
    late = replace(fid, times=fid.times + 0.01)
    shifted, plain = fitted([*rest, late], time_zero=0.01), fitted([*rest, fid])
    assert shifted.line.fit.values == pytest.approx(plain.line.fit.values, rel=1e-6)


def test_samples_from_before_the_signal_began_are_left_out():
    *rest, fid = measured(SIGMA, 0, *OIL)
    before = np.zeros(7)
    times = fid.dwell * np.arange(fid.times.size + 7)
    late = replace(fid, times=times, values=np.concatenate([before, fid.values]))
    shifted, plain = fitted([*rest, late], time_zero=7 * fid.dwell), fitted([*rest, fid])
    assert shifted.line.fit.values == pytest.approx(plain.line.fit.values, rel=1e-6)
    with pytest.raises(ValueError, match=r"time_zero: got 0\.9 s, which leaves 0 samples of fid"):
        fitted([*rest, fid], time_zero=0.9)


def test_one_of_each_kind_is_needed():
    ir, cpmg, fid = measured(SIGMA, 0, *OIL)
    with pytest.raises(ValueError, match=r"got 0 of echo train \(none\), allowed one"):
        fit_sample([ir, fid])
    with pytest.raises(ValueError, match=r"got 2 of inversion recovery \(ir\.csv, ir\.csv\)"):
        fit_sample([ir, ir, cpmg, fid])


def test_too_few_values_are_refused():
    ir = measured(SIGMA, 0, *OIL)[0]
    with pytest.raises(ValueError, match=r"ir\.csv: got 4 numbers for 4 parameters, allowed more"):
        fit_inversion_recovery(replace(ir, times=ir.times[:2], values=ir.values[:2]))
