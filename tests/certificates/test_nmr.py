"""Certificates of pulse lists: what holds is found to hold, what was changed is found out."""

import json
import math
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from palestra.certificates.check import nmr, reading
from palestra.certificates.files import Certificate, Claim
from palestra.certificates.nmr import energy_budget_certificate, time_bound_certificate
from palestra.certificates.verify import problems, verify
from palestra.envs.nmr.events import Event, EventList, Receive, run
from palestra.envs.nmr.information import noise_density, time_bound
from palestra.envs.nmr.pulses import bssfp, cpmg, deft
from palestra.envs.nmr.sample import load_sample
from palestra.safe_files import MalformedFile

FOLDER = Path(nmr.__file__).parent


def spins(sample="oil", seed=3):
    import palestra

    env = palestra.make("NMRRelax", sample=sample)
    env.reset(seed=seed)
    return env.unwrapped.batch.isochromats(0)


def listened(events, dead_time=1e-4, dwell=1e-4):
    """The same events with the receiver open in every delay."""
    return EventList(
        tuple(
            Event(e.theta, e.phi, 0.0, e.tau, Receive(dead_time, dwell, int(e.tau / dwell) - 1))
            for e in events
        )
    )


LISTS = {
    "echoes": cpmg(4e-3, 60, 3.0, 1e-4, 1e-4) * 3,
    "steady state": listened(bssfp(math.radians(70), 4e-3, 300)),
    "driven equilibrium": deft(2e-3, 0.1) + cpmg(4e-3, 9, 0.2, 1e-4, 1e-4, flip_back=True),
}
N0 = noise_density(0.3, 0.3)


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("sample", ["oil", "mixed"])
def test_the_independent_checker_finds_the_same_numbers(name, sample, tmp_path):
    ensemble = spins(sample)
    for made in (
        time_bound_certificate(LISTS[name], ensemble, N0),
        energy_budget_certificate(LISTS[name], ensemble),
    ):
        path = made.save(tmp_path / "it.cert")
        assert verify(path) == ()
        assert Certificate.load(path).verify() == ()
        assert made.claim.numbers.get("efficiency", 0.5) <= 1.0
    assert made.episode_bounds() == ()
    assert dict(made.claim.numbers)["lost"] < 0.6


def test_its_bound_is_the_one_of_the_formula():
    made = time_bound_certificate(LISTS["steady state"], spins("oil"), N0)
    error = made.claim.numbers["relative_error"]
    assert made.claim.numbers["time_bound"] == pytest.approx(time_bound(0.6, 0.3, error), rel=1e-9)
    assert made.episode_bounds() == (("efficiency", "<=", 1.0),)


def test_the_checkers_simulation_of_finite_pulses_is_the_exact_one():
    """Its end state against this package's matrix exponential, its balance against the identity."""
    ensemble = spins("soil")
    events = EventList(
        tuple(Event(1.1 + 0.3 * k, 0.7 * k, 1e-4, 3e-3, label="") for k in range(12))
    )
    rows = np.zeros((12, len(nmr.COLUMNS)))
    rows[:, :4] = [(e.theta, e.phi, e.t_pulse, e.tau) for e in events]
    given = {
        "offset_hz": ensemble.offset_hz[0],
        "b1": ensemble.b1[0],
        "R1": ensemble.rate_of_isochromat(ensemble.R1)[0],
        "R2": ensemble.rate_of_isochromat(ensemble.R2)[0],
        "receive": ensemble.receive[0],
    }
    found = nmr.simulate(rows, given)
    end = run(events, ensemble).m[0]
    expected = (1 - (end**2).sum(axis=0)) / 2
    np.testing.assert_allclose(found["lost"], expected, atol=1e-10)
    balance = found["transverse"] - found["longitudinal"]
    np.testing.assert_allclose(found["lost"], balance, atol=1e-10)


def altered(certificate, numbers=None, **arrays):
    """The document and arrays of a forged certificate, hashes made to fit."""
    document, given = certificate.document(), {**certificate.arrays, **arrays}
    document["claim"]["numbers"] |= numbers or {}
    document["hashes"] = {name: reading.digest(array) for name, array in given.items()}
    return document, given


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"duration": 1.0}, "duration: claimed 1.0, recomputed"),
        ({"efficiency": 0.99}, "efficiency: claimed 0.99, recomputed"),
        ({"efficiency": 1.2}, "efficiency: claimed 1.2, possible 0 to 1"),
        ({"energy": 5.0}, "energy: claimed 5.0, recomputed"),
        ({"time_bound": 0.0}, "time_bound: claimed 0.0, recomputed"),
        ({"relative_error": "small"}, "relative_error: claimed 'small', recomputed"),
    ],
)
def test_a_forged_number_is_refuted(numbers, message):
    made = time_bound_certificate(LISTS["echoes"], spins(), N0)
    assert any(message in problem for problem in problems(*altered(made, numbers)))


def test_a_forged_world_is_refuted():
    made = time_bound_certificate(LISTS["echoes"], spins(), N0)
    events = made.arrays["events"].copy()
    events[3, 0] *= 0.9  # another flip angle
    assert problems(*altered(made, events=events))
    assert problems(*altered(made, R1=2 * made.arrays["R1"]))
    budget = energy_budget_certificate(LISTS["echoes"], spins())
    assert problems(*altered(budget, b1=1.01 * budget.arrays["b1"]))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"R2": "R1 / 4"}, "R2 of R1 / 2 or more"),
        ({"receive": "twice"}, "sum to 1"),
        ({"events": "wide"}, "allowed"),
        ({"b1": "short"}, "same length"),
    ],
)
def test_impossible_worlds_are_refused(arrays, message):
    made = time_bound_certificate(LISTS["echoes"], spins(), N0)
    change = {
        "R1 / 4": lambda: made.arrays["R1"] / 4,
        "twice": lambda: 2 * made.arrays["receive"],
        "wide": lambda: np.zeros((3, 4)),
        "short": lambda: made.arrays["b1"][:-1],
    }
    ((name, kind),) = arrays.items()
    with pytest.raises(MalformedFile, match=message):
        problems(*altered(made, **{name: change[kind]()}))


# --- the file -------------------------------------------------------------------------------------


def test_every_flipped_byte_is_noticed(tmp_path):
    path = time_bound_certificate(LISTS["driven equilibrium"], spins(), N0).save(tmp_path / "a")
    content = path.read_bytes()
    rng = np.random.default_rng(0)
    harmless = 0
    for at in rng.integers(0, len(content), 60):
        broken = bytearray(content)
        broken[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(bytes(broken))
        try:
            harmless += verify(path) == ()
        except MalformedFile:
            continue
    # a letter in the text for people, or a padding blank, changes nothing that is checked
    header = struct.unpack("<Q", content[:8])[0]
    assert harmless <= 60 * header / len(content)


def test_the_same_certificate_is_the_same_bytes(tmp_path):
    made = [time_bound_certificate(LISTS["echoes"], spins(), N0, date="2026") for _ in range(2)]
    first, second = (one.save(tmp_path / str(k)).read_bytes() for k, one in enumerate(made))
    assert first == second
    assert Certificate.load(tmp_path / "0").claim == made[0].claim


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "too short"),
        (b"\xff" * 64, "a header of"),
        (struct.pack("<Q", 2) + b"[]", "no certificate in its metadata"),
        (struct.pack("<Q", 3) + b"{]}", "not JSON"),
        (save({"a": np.zeros(2)}), "no certificate in its metadata"),
        (save({}, {"certificate": '{"format": "x"}'}), "format is not"),
        (
            save({}, {"certificate": '{"format": "palestra.certificate", "schema": 9}'}),
            "schema 9, read here: 1",
        ),
    ],
)
def test_what_is_no_certificate_is_said_to_be_none(tmp_path, content, message):
    path = tmp_path / "x.cert"
    path.write_bytes(content)
    with pytest.raises(MalformedFile, match=message):
        verify(path)
    with pytest.raises(MalformedFile, match=message):
        Certificate.load(path)


def test_the_checkers_run_alone(tmp_path):
    """The folder of the checkers, copied: no palestra, no SciPy, no compiler, no torch."""
    path = time_bound_certificate(LISTS["echoes"], spins(), N0).save(tmp_path / "it.cert")
    blocked = ["palestra", "scipy", "numba", "torch", "stable_baselines3", "safetensors"]
    alone = f"""
import importlib.util, sys
for name in {blocked!r}:
    sys.modules[name] = None
def load(file):
    spec = importlib.util.spec_from_file_location("part", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
document, arrays = load({str(FOLDER / "reading.py")!r}).read({str(path)!r})
print(load({str(FOLDER / "nmr.py")!r}).check(document, arrays))
"""
    out = subprocess.run([sys.executable, "-c", alone], capture_output=True, text=True, check=False)
    assert (out.stdout, out.returncode) == ("[]\n", 0), out.stderr


def test_checkers_import_numpy_and_the_standard_library_only():
    allowed = {"numpy", "flint", *sys.stdlib_module_names}
    for file in FOLDER.glob("*.py"):
        for line in file.read_text().splitlines():
            words = line.split()
            if words[:1] in (["import"], ["from"]):
                assert words[1].split(".")[0] in allowed, (file, line)


# --- claims ---------------------------------------------------------------------------------------


def test_claims_of_no_known_kind_or_without_numbers_are_refused():
    with pytest.raises(ValueError, match="kind: got 'faith', allowed stability"):
        Claim("faith", "It works.", {})
    with pytest.raises(ValueError, match=r"numbers\['x'\]: got nan"):
        Claim("safety", "It is safe.", {"x": math.nan})
    with pytest.raises(ValueError, match="bounds: got '<'"):
        Claim("safety", "It is safe.", {}, (("cost", "<", 1.0),))
    claim = Claim("safety", "It is safe.", {})
    with pytest.raises(ValueError, match="confidence: got None for method 'statistical'"):
        Certificate("nmr", claim, "statistical", {}, "", {})
    with pytest.raises(ValueError, match="method: got 'hope'"):
        Certificate("nmr", claim, "hope", {}, "", {})


def test_it_is_read_by_people(tmp_path):
    made = time_bound_certificate(LISTS["echoes"], spins(), N0)
    text = str(made)
    for words in ("TIME BOUND", "efficiency =", "assumes: the Bloch equations", "drift"):
        assert words in text
    page = made._repr_html_()
    assert page.count("<tr>") == 5
    assert "&lt;" not in page
    json.dumps(made.document())


def test_lists_that_measure_nothing_have_no_bound():
    silent = EventList((Event(math.pi / 2, tau=1.0),))
    with pytest.raises(ValueError, match="receives nothing"):
        time_bound_certificate(silent, spins(), N0)
    with pytest.raises(ValueError, match=r"N0: got 0\.0"):
        time_bound_certificate(LISTS["echoes"], spins(), 0.0)
    assert load_sample("oil").T_bound == pytest.approx(42.0)


def test_on_the_command_line(tmp_path, capsys):
    from palestra.experiments import cli

    events, out = tmp_path / "train.csv", tmp_path / "train.cert"
    events.write_text(LISTS["echoes"].to_csv())
    assert cli.main(["nmr", "certify", str(events), "--sample", "oil", "-o", str(out)]) == 0
    assert cli.main(["verify", str(out), "--json"]) == 0
    assert cli.main(["show", str(out)]) == 0
    assert "TIME BOUND" in capsys.readouterr().out
    document, arrays = altered(Certificate.load(out), {"efficiency": 0.9})
    out.write_bytes(save(arrays, {"certificate": json.dumps(document)}))
    assert cli.main(["verify", str(out)]) == 1
    assert "refuted: efficiency: claimed 0.9" in capsys.readouterr().out
    assert cli.main(["verify", str(events)]) == 3
