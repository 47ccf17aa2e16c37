"""Imports point down only, families never import each other, and nothing imports `envs`.

All of it is read from the source, so that a lazy import inside a function counts as well.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = ("core", "envs", "certificates", "controllers", "agents", "experiments")  # lowest first
SOURCES = sorted(path for layer in LAYERS for path in (ROOT / layer).rglob("*.py"))
FAMILIES = {path.parent.name for path in (ROOT / "envs").glob("*/__init__.py")}


def module_name(path: Path) -> str:
    """`core/streams.py` -> `palestra.streams`; `envs/nmr/__init__.py` -> `palestra.envs.nmr`."""
    layer, *parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(["palestra", *([] if layer == "core" else [layer]), *parts])


def layer_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in LAYERS else "core"


def family_of(module: str) -> str | None:
    """The family that a module belongs to: in `envs`, or under its name in a layer above."""
    parts = module.split(".")
    if len(parts) < 3 or layer_of(module) in ("core", "experiments"):
        return None
    return parts[2] if parts[2] in FAMILIES else None


def unit_of(module: str) -> str:
    """What imports itself relatively: a family in `envs`, any other folder of the root."""
    layer = layer_of(module)
    return f"envs.{family_of(module)}" if layer == "envs" and family_of(module) else layer


def imports(source: str, module: str, is_package: bool) -> Iterator[tuple[int, int, str]]:
    """(line, dots, absolute name) of everything `source` imports; dots is 0 if absolute."""
    package = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, 0, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1]
            target = ".".join([*(base if node.level else ()), *filter(None, [node.module])])
            for alias in node.names:
                # `from palestra import batch` may name a module or an attribute of the package.
                yield node.lineno, node.level, f"{target}.{alias.name}"


def violations(source: str, module: str, is_package: bool = False) -> list[str]:
    """Every import of `source` that breaks a rule, as `line: reason`."""
    found = []
    for line, dots, target in imports(source, module, is_package):
        first = target.split(".")[0]
        if dots == 0 and first in LAYERS:
            found.append(f"{line}: `{target}` is a folder of the checkout; write `palestra`")
        if first != "palestra":
            if dots:
                found.append(f"{line}: the relative import of `{target}` leaves the package")
            continue
        if LAYERS.index(layer_of(target)) > LAYERS.index(layer_of(module)):
            found.append(f"{line}: {layer_of(module)} imports upwards: `{target}`")
        family, other = family_of(module), family_of(target)
        if family and other and family != other:
            found.append(f"{line}: family {family} imports family {other}: `{target}`")
        within = unit_of(target) == unit_of(module)
        if dots and not within:
            found.append(f"{line}: `{target}` is in another folder; import it absolutely")
        if not dots and within:
            found.append(f"{line}: `{target}` is in the same folder; import it relatively")
    return found


@pytest.mark.parametrize("path", SOURCES, ids=[str(p.relative_to(ROOT)) for p in SOURCES])
def test_imports_of_a_module_keep_the_rules(path: Path) -> None:
    broken = violations(
        path.read_text(encoding="utf-8"), module_name(path), path.name == "__init__.py"
    )
    assert not broken, "\n".join(f"{path.relative_to(ROOT)}:{entry}" for entry in broken)


@pytest.mark.parametrize(
    ("module", "line", "reason"),
    [
        ("palestra.batch", "import envs", "folder of the checkout"),
        ("palestra.batch", "from core.streams import uniform", "folder of the checkout"),
        ("palestra.batch", "def f():\n    from palestra.envs import nmr", "upwards"),
        ("palestra.envs.nmr.env", "from palestra.agents.nmr import Agent", "upwards"),
        ("palestra.batch", "from . import envs", "upwards"),
        ("palestra.batch", "from palestra.streams import uniform", "import it relatively"),
        ("palestra.envs.nmr.env", "from palestra.envs.nmr.bloch import f", "import it relatively"),
        ("palestra.envs.nmr.env", "from ...batch import BatchEnv", "import it absolutely"),
        ("palestra.controllers.nmr", "from ..envs.nmr.bloch import f", "import it absolutely"),
        ("palestra.batch", "from ..x import f", "leaves the package"),
    ],
)
def test_a_broken_rule_is_seen(module: str, line: str, reason: str) -> None:
    assert any(reason in entry for entry in violations(line, module))


def test_a_family_that_imports_another_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "FAMILIES", {"nmr", "matching"})
    line = "from palestra.envs.matching.heart import f"
    for module in ("palestra.envs.nmr.env", "palestra.controllers.nmr", "palestra.agents.nmr"):
        assert any("family nmr imports" in entry for entry in violations(line, module))
    assert not violations(line, "palestra.controllers.matching.lp")


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("palestra.batch", "from .streams import uniform"),
        ("palestra.views.gym", "from ..batch import BatchEnv"),
        ("palestra.envs.nmr.env", "from palestra.batch import BatchEnv\nfrom .bloch import f"),
        ("palestra.agents.nmr", "from palestra.controllers.nmr import deft"),
        ("palestra.experiments.cli", "import numpy as np\nfrom .nmr_relax import NMRRelax"),
    ],
)
def test_a_kept_rule_is_not_refused(module: str, line: str) -> None:
    assert not violations(line, module)


def test_importing_palestra_leaves_the_folder_names_free() -> None:
    script = (
        "import sys, importlib\n"
        "for name in ('palestra', 'palestra.envs', 'palestra.certificates',"
        " 'palestra.controllers', 'palestra.agents', 'palestra.experiments'):\n"
        "    importlib.import_module(name)\n"
        f"print(*[name for name in {LAYERS} if name in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert ran.stdout.split() == []
