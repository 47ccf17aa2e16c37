"""Pages written at build time: one for each environment of the catalogue.

An environment's page is its class docstring, below its identifier and its spaces as an instance
reports them. mkdocstrings reads source files by package name, so the folders of the repository
are first copied to where their import names put them.
"""

import importlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gymnasium import spaces
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
TREE = ROOT / "build" / "docs"
SECTION = "Environments"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Lay the sources out by import name and add the environments to the navigation."""
    shutil.rmtree(TREE, ignore_errors=True)
    for folder in ("core", "envs", "certificates", "controllers", "agents", "experiments"):
        target = TREE / "palestra" / ("" if folder == "core" else folder)
        shutil.copytree(ROOT / folder, target, ignore=shutil.ignore_patterns("__pycache__"))
    section = next(entry[SECTION] for entry in config.nav or [] if SECTION in entry)
    section += [{name: page_of(name)} for name, _ in catalogue()]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    for name, target in catalogue():
        files.append(File.generated(config, page_of(name), content=environment_page(name, target)))
    return files


def catalogue() -> Iterator[tuple[str, str]]:
    """(name, `module:class`) of every environment that ships."""
    envs = importlib.import_module("palestra.envs")
    for name, entry in sorted(getattr(envs, "CATALOGUE", {}).items()):
        yield name, entry if isinstance(entry, str) else entry.target


def page_of(name: str) -> str:
    """Path of an environment's page, from `docs/`."""
    return f"environments/{name.lower()}.md"


def environment_page(name: str, target: str) -> str:
    """Markdown of one environment's page."""
    module, _, attribute = target.partition(":")
    env = getattr(importlib.import_module(module), attribute)(rows=1)
    lines = [f"# {name}", "", f"`palestra/{name}-v0` · `{module}.{attribute}`", ""]
    lines += ["| | space | shape | dtype | range |", "|---|---|---|---|---|"]
    for role in ("observation", "action"):
        for part, space in leaves(getattr(env, f"{role}_space"), role):
            lines.append(f"| {part} | " + " | ".join(describe(space)) + " |")
    if env.agents:
        lines += ["", "Spaces of one agent; the agents are " + ", ".join(env.agents) + "."]
    lines += ["", f"::: {module}.{attribute}", "    options:", "      show_root_heading: false"]
    lines += ["      show_root_toc_entry: false", "      show_bases: false", "      members: false"]
    return "\n".join(lines) + "\n"


def leaves(space: spaces.Space[Any], name: str) -> Iterator[tuple[str, spaces.Space[Any]]]:
    """The parts of a nested space, each with its path."""
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from leaves(part, f"{name}.{key}")
    elif isinstance(space, spaces.Tuple):
        for index, part in enumerate(space.spaces):
            yield from leaves(part, f"{name}[{index}]")
    else:
        yield name, space


def describe(space: spaces.Space[Any]) -> tuple[str, str, str, str]:
    """(kind, shape, dtype, range) of a space without parts, as cells of a table."""
    match space:
        case spaces.Box():
            extent = f"{space.low.min():g} to {space.high.max():g}"
        case spaces.Discrete():
            extent = f"{space.start} to {space.start + space.n - 1}"
        case spaces.MultiDiscrete():
            extent = "0 to " + ", ".join(str(n - 1) for n in space.nvec.ravel())
        case _:
            extent = ""
    kind = next(c.__name__ for c in type(space).__mro__ if c.__module__.startswith("gymnasium"))
    return kind, str(space.shape), str(space.dtype), extent
