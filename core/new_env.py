"""`palestra new-env`: a minimal package with an environment that passes every check."""

from __future__ import annotations

import importlib.resources
import keyword
import re
import sys
from pathlib import Path

from .registry import catalogue, squash

_TEMPLATES = "data/new_env"
_PLACES = {  # template -> where it goes; {package} and {name} are filled in
    "pyproject.txt": "pyproject.toml",
    "readme.txt": "README.md",
    "package.txt": "{package}/__init__.py",
    "env.txt": "{package}/env.py",
    "test.txt": "tests/test_{package}.py",
}


def write_package(name: str, folder: Path | None = None) -> Path:
    """Write a package with one environment.

    Args:
        name: of the environment, such as "WaterTank" or "water-tank".
        folder: where to write it; None: a folder of the package's name in the current one.

    Returns:
        The folder.

    Raises:
        ValueError: a name that Python, packaging or the catalogue cannot have.
        FileExistsError: the folder holds something already; nothing is overwritten.
    """
    words = _words(name)
    class_name = "".join(word[:1].upper() + word[1:] for word in words)
    package = "_".join(word.lower() for word in words)
    _refuse(name, class_name, package)
    folder = Path(package) if folder is None else folder
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(17, "holds something already; nothing is overwritten", str(folder))
    filled = {
        "@CLASS@": class_name,
        "@PACKAGE@": package,
        "@DISTRIBUTION@": package.replace("_", "-"),
    }
    templates = importlib.resources.files(__package__) / _TEMPLATES
    for template, place in _PLACES.items():
        text = (templates / template).read_text(encoding="utf-8")
        for mark, value in filled.items():
            text = text.replace(mark, value)
        file = folder / place.format(package=package)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return folder


def _words(name: str) -> list[str]:
    """`WaterTank`, `water-tank` and `water_tank` are the same two words."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9]*([-_][A-Za-z0-9]+)*", name) or len(name) > 60:
        raise ValueError(
            f"name: got {name!r}, allowed letters and digits, such as WaterTank or water-tank; a "
            "letter first, at most 60 characters"
        )
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name)
    return re.split(r"[-_]", spaced)


def _refuse(name: str, class_name: str, package: str) -> None:
    taken = {squash(known) for known in catalogue()}
    if squash(name) in taken:
        raise ValueError(f"name: got {name!r}, which is an environment of palestra; choose another")
    modules = {*sys.stdlib_module_names, "palestra", "tests", "numpy", "gymnasium", "pytest"}
    if package in modules or keyword.iskeyword(package) or keyword.iskeyword(class_name):
        raise ValueError(f"name: got {name!r}; there is a Python module or keyword {package!r}")
