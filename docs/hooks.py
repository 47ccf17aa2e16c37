"""Pages written at build time: one for each environment of the catalogue.

An environment's page is its class docstring, below its identifier and its spaces as an instance
reports them. mkdocstrings reads source files by package name, so the folders of the repository
are first copied to where their import names put them.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gymnasium import spaces
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from palestra.registry import Entry, catalogue, kebab, resolve

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
    section += [{entry.name: page_of(entry)} for entry in catalogue().values()]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    for entry in catalogue().values():
        files.append(File.generated(config, page_of(entry), content=environment_page(entry)))
    return files


def page_of(entry: Entry) -> str:
    """Path of an environment's page, from `docs/`."""
    return f"environments/{kebab(entry.name)}.md"


def environment_page(entry: Entry) -> str:
    """Markdown of one environment's page."""
    env = resolve(entry).make(rows=1)
    path = entry.entry_point.replace(":", ".")
    lines = [f"# {entry.name}", "", f"`{entry.id}`: {entry.summary}.", ""]
    lines += ["| | space | shape | dtype | range |", "|---|---|---|---|---|"]
    for role in ("observation", "action"):
        for part, space in leaves(getattr(env, f"{role}_space"), role):
            lines.append(f"| {part} | " + " | ".join(describe(space)) + " |")
    if env.agents:
        lines += ["", "Spaces of one agent; the agents are " + ", ".join(env.agents) + "."]
    lines += ["", f"::: {path}", "    options:", "      show_root_heading: false"]
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
