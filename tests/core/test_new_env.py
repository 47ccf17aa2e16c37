"""`palestra new-env`: what it writes is a package, installs, shows, and passes its own check."""

from __future__ import annotations

import importlib
import subprocess
import sys
import tomllib

import pytest

from palestra.check import check
from palestra.new_env import write_package
from palestra.registry import plugins, resolve


@pytest.mark.parametrize("name", ["WaterTank", "water-tank", "water_tank"])
def test_a_name_in_any_spelling_gives_the_same_package(name, tmp_path):
    folder = write_package(name, tmp_path / "new")
    files = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    assert files == [
        "README.md",
        "pyproject.toml",
        "tests/test_water_tank.py",
        "water_tank/__init__.py",
        "water_tank/env.py",
    ]
    assert not any("@" in p.read_text() for p in folder.rglob("*.py"))
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    points = project["project"]["entry-points"]["palestra.envs"]
    assert points == {"WaterTank": "water_tank.env:WaterTank"}


def test_its_environment_passes_the_strict_check(tmp_path):
    folder = write_package("WaterTank", tmp_path / "new")
    report = check(f"{folder}/water_tank/env.py:WaterTank", isolate=False)
    assert report.ours
    assert report.holds(strict=True), str(report)


def test_its_own_test_passes(tmp_path):
    folder = write_package("WaterTank", tmp_path / "new")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "1 passed" in ran.stdout


def test_once_installed_it_is_listed(tmp_path, monkeypatch):
    """Installed as pip does it: with its metadata on the path."""
    folder = write_package("WaterTank", tmp_path / "new")
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"),
            *("--no-build-isolation", "--target", str(tmp_path / "site"), str(folder)),
        ],
        check=True,
        capture_output=True,
    )
    monkeypatch.syspath_prepend(tmp_path / "site")
    importlib.invalidate_caches()
    listed = {p.name: p for p in plugins(load=True)}
    assert listed["WaterTank"].distribution == "water-tank"
    assert listed["WaterTank"].problem == ""
    assert resolve("water-tank").make(2).rows == 2


def test_nothing_is_overwritten(tmp_path):
    folder = write_package("WaterTank", tmp_path / "new")
    before = (folder / "pyproject.toml").read_text()
    with pytest.raises(FileExistsError, match="nothing is overwritten"):
        write_package("OtherTank", folder)
    assert (folder / "pyproject.toml").read_text() == before
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FileExistsError):
        write_package("WaterTank", tmp_path / "file")
    (tmp_path / "empty").mkdir()
    assert write_package("WaterTank", tmp_path / "empty") == tmp_path / "empty"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "letters and digits"),
        ("2Tank", "letters and digits"),
        ("../Tank", "letters and digits"),
        ("Tank Two", "letters and digits"),
        ("Tänk", "letters and digits"),
        ("x" * 61, "at most 60"),
        ("class", "module or keyword 'class'"),
        ("Random", "module or keyword 'random'"),
        ("numpy", "module or keyword 'numpy'"),
        ("nmr-relax", "environment of palestra"),
    ],
)
def test_a_name_that_cannot_be_one_is_refused(name, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=said):
        write_package(name)
    assert list(tmp_path.iterdir()) == []
