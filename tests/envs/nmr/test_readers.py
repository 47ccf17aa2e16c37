"""Readers of measurements: tables, JCAMP-DX, folders; what they refuse."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest

from palestra.envs.nmr.readers import read_measurement
from palestra.safe_files import MalformedFile

ROWS = "1,-0.9,0.1\n2,-0.5,0\n4,0.2,0\n8,0.8,0\n"


def written(tmp_path, text, name="x.csv"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "text",
    [
        "# a comment\ndelay (ms), real, imag\n" + ROWS,
        "delay_ms;real;imag\n" + ROWS.replace(",", ";").replace(".", ","),
        "delay [ms]\tre\tim\n" + ROWS.replace(",", "\t"),
        "Delay/ms real imag\n" + ROWS.replace(",", " "),
        '\ufeff"delay (us)","real","imag"\n1000,-0.9,0.1\n2000,-0.5,0\n4000,0.2,0\n8000,0.8,0\n',
    ],
)
def test_tables_of_every_kind_are_read(tmp_path, text):
    path = written(tmp_path, text)
    found = read_measurement(path)
    assert (found.kind, found.has_imaginary, found.name) == ("ir", True, "x.csv")
    np.testing.assert_allclose(found.times, [1e-3, 2e-3, 4e-3, 8e-3], rtol=1e-12)
    np.testing.assert_array_equal(found.values, [-0.9 + 0.1j, -0.5, 0.2, 0.8])
    assert found.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("header", "kind"),
    [("delay,integral", "ir"), ("time (ms),amplitude", "cpmg"), ("tau,real", "ir")],
)
def test_the_header_tells_what_was_measured(tmp_path, header, kind):
    rows = "".join(f"{k},{k}\n" for k in range(1, 6))
    assert read_measurement(written(tmp_path, f"{header}\n{rows}")).kind == kind


def test_rows_come_out_in_order_of_time(tmp_path):
    found = read_measurement(written(tmp_path, "delay,real\n4,1\n1,2\n3,3\n2,4\n"))
    assert found.values.real.tolist() == [2, 4, 3, 1]


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("delay,real\n1,2\n2,x\n", MalformedFile, "line 3, column 2: got 'x', allowed a number"),
        ("delay,real\n1,2\n2,nan\n", MalformedFile, "line 3, column 2: got 'nan'"),
        ("delay,real\n1,2\n2\n", MalformedFile, "line 3: got 1 columns, allowed 2"),
        ("delay,real\n", MalformedFile, "no line of numbers"),
        ("", MalformedFile, "no line of numbers"),
        ("delay (h),real\n1,2\n", ValueError, "column 1: got the unit 'h', allowed s, ms, us"),
        ("delay,magnitude\n1,2\n", ValueError, "column 2: got 'magnitude', allowed real and imag"),
        ("dose,real\n1,2\n", ValueError, "allowed a time"),
        ("1,2\n2,3\n3,4\n4,5\n", ValueError, "which do not tell what was measured: give --ir"),
        ("delay,real\n1,2\n2,3\n", ValueError, "got 2 values of an inversion recovery, allowed 4"),
        ("delay,real\n-1,2\n2,3\n3,3\n4,4\n", ValueError, "got times from -1.0 to 4.0 s"),
        ("delay,real\n1,0\n2,0\n3,0\n4,0\n", ValueError, "got values up to 0, allowed a signal"),
    ],
)
def test_bad_tables_are_refused_by_file_line_and_column(tmp_path, text, error, message):
    with pytest.raises(error, match=rf"x\.csv: .*{message}"):
        read_measurement(written(tmp_path, text))


def test_an_fid_is_complex_and_evenly_sampled(tmp_path):
    rows = [f"{k},{k % 5}\n" for k in range(1, 30)]
    with pytest.raises(ValueError, match="an FID without an imaginary part"):
        read_measurement(written(tmp_path, "time,real\n" + "".join(rows)), "fid")
    rows = [f"{k * k},1,2\n" for k in range(1, 30)]
    with pytest.raises(ValueError, match="got steps of 3 to 57 s between samples of an FID"):
        read_measurement(written(tmp_path, "time,real,imag\n" + "".join(rows)))


def test_an_unknown_kind_is_refused(tmp_path):
    with pytest.raises(ValueError, match="kind: got 't1', allowed ir, cpmg, fid"):
        read_measurement(written(tmp_path, ROWS), "t1")


# -------------------------------------------------------------------------------------- JCAMP-DX


def jcamp(real: str, imaginary: str, points: int) -> str:
    last = (points - 1) * 1e-3
    return f"""##TITLE= made by hand
##JCAMP-DX= 5.01 $$ a comment
##DATA TYPE= NMR FID
##DATA CLASS= NTUPLES
##.OBSERVE FREQUENCY= 10.7
##.OBSERVE NUCLEUS= ^13C
##NTUPLES= NMR FID
##VAR_NAME= TIME, FID/REAL, FID/IMAG, PAGE NUMBER
##SYMBOL= X, R, I, N
##VAR_FORM= AFFN, ASDF, ASDF, AFFN
##VAR_DIM= {points}, {points}, {points}, 2
##UNITS= SECONDS, ARBITRARY UNITS, ARBITRARY UNITS,
##FIRST= 0, 1, 0, 1
##LAST= {last}, 1, 0, 2
##FACTOR= 0.001, 0.5, 0.25, 1
##PAGE= N=1
##DATA TABLE= (X++(R..R)), XYDATA
{real}
##PAGE= N=2
##DATA TABLE= (X++(I..I)), XYDATA
{imaginary}
##END NTUPLES= NMR FID
##END=
"""


# 1 2 3 3 2 1 0 -1 -2 -3, the example of McDonald and Wilks, in each of its forms
FORMS = {
    "AFFN": "0 1 2 3 3 2 1 0 -1 -2 -3\n10 5 6 7 8 9 10",
    "SQZ": "0ABCCBA@abc\n10EFGHIA0",
    "DIF": "0AJJ%jjjjjj\n9cQJJJJJ",
    "DIFDUP": "0AJJ%jX\n9cQJW",
    "SQZDUP": "0ABCTBA@abc\n10EFGHIA0",
}
VALUES = [1, 2, 3, 3, 2, 1, 0, -1, -2, -3, 5, 6, 7, 8, 9, 10]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_packed_numbers_is_read(tmp_path, form):
    path = written(tmp_path, jcamp(FORMS[form], FORMS["AFFN"], 16), "x.dx")
    found = read_measurement(path)
    np.testing.assert_allclose(found.values, 0.5 * np.array(VALUES) + 0.25j * np.array(VALUES))
    np.testing.assert_allclose(found.times, np.arange(16) * 1e-3)
    assert (found.kind, found.frequency_mhz, found.isotope) == ("fid", 10.7, "13C")


@pytest.mark.parametrize("form", ["AFFN", "SQZ", "DIF", "DIFDUP"])
def test_nmrglue_reads_the_same(tmp_path, form):
    nmrglue = pytest.importorskip("nmrglue")
    path = written(tmp_path, jcamp(FORMS[form], FORMS[form], 16), "x.dx")
    _, (real, imaginary) = nmrglue.jcampdx.read(str(path))
    found = read_measurement(path)
    np.testing.assert_allclose(found.values.real, real)
    np.testing.assert_allclose(found.values.imag, imaginary)


@pytest.mark.parametrize(
    ("old", "new", "error", "message"),
    [
        (
            "9cQ",
            "9bQ",
            MalformedFile,
            "line 19: got -2 as the check of the line before, allowed -3",
        ),
        ("AJJ%jX", "AJJ?jX", MalformedFile, r"line 18: got '\?jX', allowed ASDF"),
        ("AJJ%jX", "SAJJ%jX", MalformedFile, "line 18: got 'S', allowed to follow a value"),
        ("AJJ%jX", "AJJ%jZ", MalformedFile, "got -5? ?.*|allowed"),
        ("0AJJ", "0JJ", MalformedFile, "got the difference 'J' before any value"),
        ("NMR FID\n##DATA CLASS", "NMR SPECTRUM\n##DATA CLASS", ValueError, "DATA TYPE: got"),
        ("##JCAMP-DX=", "##JCAMP=", MalformedFile, "no JCAMP-DX label"),
        ("SECONDS", "HZ", ValueError, "UNITS: got 'HZ' of X, allowed SECONDS"),
        ("##FACTOR= 0.001", "##FACTOR= x", MalformedFile, "FACTOR: got 'x', allowed a number"),
        ("##VAR_DIM= 16", "##VAR_DIM= 17", MalformedFile, "got 16 ordinates, allowed VAR_DIM = 17"),
        ("(X++(R..R))", "(XY..XY)", MalformedFile, "line 17: got"),
    ],
)
def test_damaged_jcamp_files_are_refused(tmp_path, old, new, error, message):
    text = jcamp(FORMS["DIFDUP"], FORMS["AFFN"], 16)
    assert old in text
    with pytest.raises(error, match=rf"x\.dx: .*{message}"):
        read_measurement(written(tmp_path, text.replace(old, new), "x.dx"))


# --------------------------------------------------------------------------------------- folders

DWELL, DELAY, POINTS = 1e-3, 20.25, 512
TIMES = DWELL * np.arange(POINTS)
LINE = 1e6 * np.exp(2j * math.pi * 60.0 * TIMES - TIMES / 0.03)


@pytest.fixture
def topspin(tmp_path):
    """A line at +60 Hz behind a digital filter that delays it by 20.25 samples."""
    turns = np.exp(-2j * math.pi * DELAY * np.fft.fftfreq(POINTS))
    delayed = np.fft.ifft(np.fft.fft(LINE) * turns)
    folder = tmp_path / "1"
    folder.mkdir()
    raw = np.round(np.stack([delayed.real, delayed.imag], axis=1)).astype("<i4")
    (folder / "fid").write_bytes(raw.tobytes())
    parameters = {"BYTORDA": 0, "DTYPA": 0, "TD": 2 * POINTS, "SW_h": 1 / DWELL, "SFO1": 10.7,
                  "NUC1": "<13C>", "DECIM": 16, "DSPFVS": 20, "GRPDLY": DELAY, "AQ_mod": 3,
                  "PULPROG": "<zg>"}  # fmt: skip
    lines = ["##TITLE= Parameter file", "##JCAMPDX= 5.0"]
    lines += [f"##${name}= {value}" for name, value in parameters.items()]
    (folder / "acqus").write_text("\n".join([*lines, "##END=", ""]))
    return folder


def test_a_topspin_folder_without_the_delay_of_its_filter(topspin):
    pytest.importorskip("nmrglue")
    found = read_measurement(topspin)
    assert (found.kind, found.frequency_mhz, found.isotope) == ("fid", 10.7, "13C")
    assert found.dwell == pytest.approx(DWELL)
    assert found.times[0] == pytest.approx(0.75 * DWELL)
    line = 1e6 * np.exp((120j * math.pi - 1 / 0.03) * found.times)
    later = slice(30, 200)  # the filter rings before
    np.testing.assert_allclose(found.values[later], line[later], atol=0.03 * abs(line[30]))


def test_a_spinsolve_folder(tmp_path):
    pytest.importorskip("nmrglue")
    (tmp_path / "acqu.par").write_text('b1Freq = 43.5\ndwellTime = 1000\nrxChannel = "1H"\n')
    header = np.zeros(8, "<i4").tobytes()
    values = np.stack([LINE.real, LINE.imag], axis=1).ravel()
    body = np.concatenate([TIMES, values]).astype("<f4").tobytes()
    (tmp_path / "data.1d").write_bytes(header + body)
    found = read_measurement(tmp_path)
    assert (found.frequency_mhz, found.isotope) == (43.5, "1H")
    np.testing.assert_allclose(found.values, LINE, rtol=1e-6)


def test_other_folders_are_refused(tmp_path):
    with pytest.raises(ValueError, match="got a folder with neither acqus and fid"):
        read_measurement(tmp_path)


def test_a_folder_without_its_parameters_is_refused(topspin):
    pytest.importorskip("nmrglue")
    text = (topspin / "acqus").read_text()
    (topspin / "acqus").write_text(text.replace("##$SW_h", "##$SW"))
    with pytest.raises(MalformedFile, match="SW_h: missing"):
        read_measurement(topspin)


def test_without_nmrglue_folders_say_what_to_install(topspin, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "nmrglue", None)
    with pytest.raises(ImportError, match=r"pip install 'palestra\[nmr\]'"):
        read_measurement(topspin)
