"""What ships with an environment: files in the folder `data/` beside the code of its class.

| file | what it holds | written by |
|---|---|---|
| `anchors.json` | the scores to compare with | `palestra anchors` |
| `tuned/<Name>-<algorithm>.toml` | options of a training that work | people, from sweeps |
| `pretrained/<Name>/` | a trained policy (one an agent), and its `card.json` | `palestra results` |
| `references.bib` | papers; `keywords` has the names of their environments | people |

`<Name>` is the name of the class. Any environment may ship such files: palestra's, a plug-in's, or
one in a file of your own. All of it is data; nothing is run.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from . import __version__
from .gym_batch import GymBatch
from .registry import Target
from .wrappers import Wrapper

CARD = "card.json"


class Reference(NamedTuple):
    """An entry of a bibliography: its key, its BibTeX text, its fields (lower case)."""

    key: str
    text: str
    fields: dict[str, str]


class Shelf(NamedTuple):
    """The data folder of an environment; `name` is that of its class."""

    folder: Path | None
    name: str

    def tuned(self) -> dict[str, Path]:
        """Files of tuned options, by algorithm."""
        found = self._files("tuned", f"{self.name}-*.toml")
        return {path.stem.removeprefix(f"{self.name}-"): path for path in found}

    def tuned_for(self, algorithm: str) -> Path:
        """The tuned file of an algorithm.

        Raises:
            FileNotFoundError: there is none; the message names those that there are.
        """
        files = self.tuned()
        if algorithm not in files:
            has = f"; there are: {', '.join(sorted(files))}" if files else ""
            raise FileNotFoundError(f"{self.name} has no tuned options for {algorithm!r}{has}")
        return files[algorithm]

    @property
    def pretrained(self) -> Path | None:
        """The folder of the trained policy that ships with the environment."""
        folder = None if self.folder is None else self.folder / "pretrained" / self.name
        return folder if folder is not None and folder.is_dir() else None

    def card(self) -> dict[str, Any] | None:
        """What the trained policy is: command, seed, score, anchors."""
        if self.pretrained is None or not (self.pretrained / CARD).is_file():
            return None
        card: dict[str, Any] = json.loads((self.pretrained / CARD).read_text(encoding="utf-8"))
        return card

    def references(self) -> list[Reference]:
        """The papers that belong to the environment, in the order of the file."""
        return [
            entry
            for path in self._files(".", "references.bib")
            for entry in bibliography(path.read_text(encoding="utf-8"))
            if self.name in re.split(r"[,\s]+", entry.fields.get("keywords", ""))
        ]

    def _files(self, below: str, pattern: str) -> list[Path]:
        folder = None if self.folder is None else self.folder / below
        return sorted(folder.glob(pattern)) if folder is not None and folder.is_dir() else []


def shelf_of(target: Target) -> Shelf:
    """The shelf of what a target names; its code is not imported."""
    reference = target.entry.entry_point if target.entry else target.reference or ""
    place, _, name = reference.rpartition(":")
    if not place:
        return Shelf(None, target.name)
    if place.endswith(".py"):
        return Shelf(Path(place).parent / "data", name)
    spec = importlib.util.find_spec(place)
    return Shelf(Path(spec.origin).parent / "data" if spec and spec.origin else None, name)


def shelf_of_env(env: Any) -> Shelf:
    """The shelf of an environment that exists: of the innermost one, where there are wrappers."""
    while isinstance(env, Wrapper):
        env = env.env
    cls = type(env.copies[0].unwrapped if isinstance(env, GymBatch) else env)
    file = getattr(sys.modules[cls.__module__], "__file__", None)
    return Shelf(Path(file).parent / "data" if file else None, cls.__name__)


def pretrained(env: Any) -> Any:
    """The trained policy that ships with an environment: the registered policy `pretrained`.

    Raises:
        FileNotFoundError: none ships with it.
    """
    from .policy import AgentPolicies
    from .policy_files import DESCRIPTION, read_policy

    shelf = shelf_of_env(env)
    if shelf.pretrained is None:
        raise FileNotFoundError(
            f"policy: {shelf.name} ships no pretrained policy; `palestra train` makes one, and its "
            "run folder is a policy"
        )
    agents = tuple(getattr(env, "agents", ()))
    if agents and not (shelf.pretrained / DESCRIPTION).is_file():
        return AgentPolicies({a: read_policy(shelf.pretrained / a) for a in agents}, agents)
    return read_policy(shelf.pretrained)


def palestra_reference() -> Reference:
    """The entry of palestra itself, in this version."""
    return next(bibliography(PALESTRA.replace("VERSION", __version__)))


PALESTRA = """@software{palestra,
  author = {{The palestra authors}},
  title = {palestra: scientific environments, agents, controllers and checkable certificates},
  version = {VERSION},
}"""

_ENTRY = re.compile(r"@(\w+)\s*\{\s*([^,\s]+)\s*,(.*?)\n\}", re.S)
_FIELD = re.compile(r"^\s*(\w+)\s*=\s*[{\"](.*?)[}\"],?\s*$", re.M)


def bibliography(text: str) -> Iterator[Reference]:
    """The entries of a BibTeX file whose fields stand a line each and whose entries end in a line
    with a brace alone.
    """
    for match in _ENTRY.finditer(text):
        fields = {name.lower(): value for name, value in _FIELD.findall(match[3])}
        text = re.sub(r"\n\s*keywords\s*=.*", "", match[0])  # of use here only
        yield Reference(match[2], text, fields)
