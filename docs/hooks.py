"""Pages written at build time: one for each environment of the catalogue.

An environment's page is its class docstring, below its identifier, its spaces as an instance
reports them, and a picture of a random episode. mkdocstrings reads source files by package name, so
the folders of the repository are first copied to where their import names put them.
"""

import inspect
import io
import re
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gymnasium import spaces
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import palestra
from palestra.batch import BatchEnv
from palestra.registry import Entry, anchors_of, catalogue, kebab, resolve

ROOT = Path(__file__).parents[1]
TREE = ROOT / "build" / "docs"
SECTION = "Environments"
EXAMPLE = re.compile(r"(?:^(?:>>>|\.\.\.).*\n?)+", re.MULTILINE)


def on_startup(command: str, dirty: bool) -> None:
    """Lay the sources out by import name, before mkdocstrings looks for the folder."""
    shutil.rmtree(TREE, ignore_errors=True)
    for folder in ("core", "envs", "certificates", "controllers", "agents", "experiments"):
        target = TREE / "palestra" / ("" if folder == "core" else folder)
        shutil.copytree(ROOT / folder, target, ignore=shutil.ignore_patterns("__pycache__"))


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the environments to the navigation."""
    section = next(entry[SECTION] for entry in config.nav or [] if SECTION in entry)
    section += [{entry.name: page_of(entry)} for entry in catalogue().values()]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and their pictures."""
    for entry in catalogue().values():
        picture = picture_of(entry)
        text = environment_page(entry, has_picture=picture is not None)
        files.append(File.generated(config, page_of(entry), content=text))
        if picture is not None:
            path = page_of(entry).replace(".md", ".png")
            files.append(File.generated(config, path, content=picture))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in what is known elsewhere: the list of environments, the accepted versions."""
    if "<!-- environments -->" in markdown:
        markdown = markdown.replace("<!-- environments -->", environments())
    if "<!-- ranges -->" in markdown:
        markdown = markdown.replace("<!-- ranges -->", accepted_versions())
    return markdown


def environments() -> str:
    """A table of the catalogue, with links to the pages."""
    rows = ["| environment | family | what it asks |", "|---|---|---|"]
    for entry in catalogue().values():
        link = f"[{entry.name}]({kebab(entry.name)}.md)"
        rows.append(f"| {link} | {entry.family} | {entry.summary} |")
    return "\n".join(rows)


def accepted_versions() -> str:
    """A table of the version ranges of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    rows = ["| package | versions | needed for |", "|---|---|---|"]
    groups = {"everything": project["dependencies"], **project["optional-dependencies"]}
    for group, requirements in groups.items():
        for requirement in requirements:
            name, version = re.fullmatch(r"([\w.\[\],-]+?)([<>=].*)?", requirement).groups()
            if group not in ("all", "dev"):
                rows.append(f"| {name} | `{version or 'any'}` | {group} |")
    return "\n".join(rows)


def page_of(entry: Entry) -> str:
    """Path of an environment's page, from `docs/`."""
    return f"environments/{kebab(entry.name)}.md"


def environment_page(entry: Entry, has_picture: bool = False) -> str:
    """Markdown of one environment's page."""
    env = resolve(entry).make(1)
    lines = [f"# {entry.name}", "", f"`{entry.id}`: {entry.summary}.", ""]
    lines += ["| | space | shape | dtype | range |", "|---|---|---|---|---|"]
    for role in ("observation", "action"):
        for part, space in leaves(getattr(env, f"{role}_space"), role):
            lines.append(f"| {part} | " + " | ".join(describe(space)) + " |")
    if env.agents:
        lines += ["", "Spaces of one agent; the agents are " + ", ".join(env.agents) + "."]
    lines += ["", "```py", signature(type(env)), "```", ""]
    text = EXAMPLE.sub(
        lambda m: f"```pycon\n{m[0].rstrip()}\n```\n", f"{inspect.getdoc(type(env))}\n"
    )
    if has_picture:
        summary, _, rest = text.partition("\n\n")
        alt = f"{entry.name} at the end of a random episode"
        text = f"{summary}\n\n![{alt}]({kebab(entry.name)}.png)\n\n{rest}"
    lines += [text, *anchors(entry)]
    return "\n".join(lines) + "\n"


def signature(cls: type[BatchEnv]) -> str:
    """How the environment is made, with its settings and their defaults."""
    settings = [p for p in inspect.signature(cls).parameters.values() if p.name != "rows"]
    shown = [f"    {p.name}={default(p.default)},\n" for p in settings]
    return f'palestra.make(\n    "{cls.__name__}",\n{"".join(shown)})'


def default(value: Any) -> str:
    """A default value as one would write it."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, tuple):
        return "(" + ", ".join(default(part) for part in value) + ")"
    return repr(value)


def anchors(entry: Entry) -> list[str]:
    """Measured scores to compare with, if there are any."""
    found = anchors_of(entry)
    if found is None:
        return []
    better = {"max": "more is better", "min": "less is better"}[found.direction]
    rows = ["## Measured anchors", "", f"Mean `{found.metric}`; {better}.", ""]
    rows += ["| policy | score |", "|---|---|", f"| random | {found.random:.4g} |"]
    rows += [f"| {found.classical_name} | {found.classical:.4g} |"]
    if found.bound is not None:
        rows += [f"| bound ({found.bound_name}) | {found.bound:.4g} |"]
    return [*rows, "", f"Measured by `{found.command}`."]


def picture_of(entry: Entry) -> bytes | None:
    """A PNG of the last step of a random episode, or None if the environment draws nothing."""
    if entry.agents:
        return None
    env = palestra.make(entry, render_mode="rgb_array")
    if type(env.batch).render is BatchEnv.render:
        return None
    from PIL import Image

    env.reset(seed=0)
    env.action_space.seed(0)
    over = False
    while not over:
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        over = terminated or truncated
    file = io.BytesIO()
    Image.fromarray(env.render()).save(file, "PNG", optimize=True)
    return file.getvalue()


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
