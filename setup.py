"""Map the folders at the root of the repository onto the one import name `palestra`.

The list of packages is computed: one missing from a static list would be silently absent
from the wheel. Everything else about the distribution stands in `pyproject.toml`.
"""

from setuptools import find_packages, setup

FOLDERS = {"palestra": "core"} | {
    f"palestra.{name}": name
    for name in ("envs", "certificates", "controllers", "agents", "experiments")
}

setup(
    package_dir=FOLDERS,
    packages=[
        package
        for name, folder in FOLDERS.items()
        for package in (name, *(f"{name}.{sub}" for sub in find_packages(folder)))
    ],
)
