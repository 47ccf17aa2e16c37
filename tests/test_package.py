"""The distribution: nothing missing from it, quick to import, kernels that share no cache."""

import ast
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import setuptools

ROOT = Path(__file__).parents[1]
FOLDERS = {
    "core": "palestra",
    "envs": "palestra.envs",
    "certificates": "palestra.certificates",
    "controllers": "palestra.controllers",
    "agents": "palestra.agents",
    "experiments": "palestra.experiments",
}
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
# Seconds each, and none is needed to print a help text or a list.
HEAVY = (
    "torch",
    "stable_baselines3",
    "sb3_contrib",
    "numba",
    "pettingzoo",
    "scipy.stats",
    "matplotlib",
    "onnx",
    "onnxruntime",
    "plotly",
    "pyarrow",
    "ray",
)


def test_setup_finds_every_folder_with_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, object] = {}
    monkeypatch.setattr(setuptools, "setup", lambda **arguments: given.update(arguments))
    monkeypatch.chdir(ROOT)
    runpy.run_path(str(ROOT / "setup.py"))
    expected = {
        ".".join([FOLDERS[top], *below])
        for top, *below in {path.parent.relative_to(ROOT).parts for path in SOURCES}
    }
    assert set(given["packages"]) == expected
    assert given["package_dir"] == {name: folder for folder, name in FOLDERS.items()}


@pytest.mark.parametrize(
    "statement",
    [
        "import palestra",
        "import palestra; dir(palestra)",
        "from palestra.experiments.cli import main; main(['--help'])",
        "from palestra.experiments.cli import main; main(['list'])",
    ],
    ids=["import", "dir", "help", "list"],
)
def test_heavy_libraries_are_not_imported_before_they_are_used(statement: str) -> None:
    # `main` may leave by SystemExit, so the modules are read at exit.
    script = (
        "import atexit, sys\n"
        "@atexit.register\n"
        f"def heavy(): print('HEAVY', *[name for name in {HEAVY} if name in sys.modules])\n"
        f"{statement}"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1].split() == ["HEAVY"]


# numba's cache does not tell two compilations of one function apart (numba#6845): with other
# flags, or wrapped twice, the second may be served the code of the first.


def name_of(node: ast.expr) -> str:
    """`numba.njit(cache=True)` -> `njit`."""
    if isinstance(node, ast.Call):
        return name_of(node.func)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


COMPILERS = {"njit", "jit", "kernel", "vectorize", "guvectorize", "stencil"}


def compilation_faults(source: str) -> Iterator[str]:
    """Kernels compiled twice, and `fastmath` other than `{'reassoc'}`."""
    compiled: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            decorators = [name_of(d) for d in node.decorator_list]
            compiled += [node.name] * sum(name in COMPILERS for name in decorators)
        elif isinstance(node, ast.Call):
            # `njit(f)` and `njit(cache=True)(f)`; a decorator's own call has no function in it.
            inner = node.func if isinstance(node.func, ast.Call) else node
            if name_of(inner) in COMPILERS and node.args and isinstance(node.args[0], ast.Name):
                compiled.append(node.args[0].id)
        elif isinstance(node, ast.keyword) and node.arg == "fastmath":
            value = ast.unparse(node.value)
            if value not in ("False", "{'reassoc'}"):
                yield f"line {node.value.lineno}: fastmath={value}"
    for name in sorted({name for name in compiled if compiled.count(name) > 1}):
        yield f"`{name}` is compiled {compiled.count(name)} times"


@pytest.mark.parametrize("path", SOURCES, ids=[str(p.relative_to(ROOT)) for p in SOURCES])
def test_a_function_is_compiled_once_and_with_exact_arithmetic(path: Path) -> None:
    if path == ROOT / "core" / "kernels.py":
        pytest.skip("the decorator itself: the one place that calls numba")
    assert list(compilation_faults(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "source",
    [
        "@njit(fastmath=True)\ndef f(x): return x",
        "@njit(fastmath={'nnan', 'reassoc'})\ndef f(x): return x",
        "@njit\ndef f(x): return x\ng = njit(fastmath=False)(f)",
        "def f(x): return x\na = kernel(f)\nb = kernel(f)",
        "@kernel\ndef f(x): return x\n@kernel\ndef f(x): return 2 * x",
    ],
)
def test_a_compilation_fault_is_seen(source: str) -> None:
    assert list(compilation_faults(source))


def test_no_module_reads_the_global_random_state_of_numpy() -> None:
    """Counter-based streams are the only source of chance (ruff's NPY002 says it too)."""
    calls = re.compile(r"np\.random\.(?!Generator|Philox|default_rng|BitGenerator|SeedSequence)\w+")
    preserver = ROOT / "core" / "global_random.py"  # gives it back as others left it
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in SOURCES
        if path != preserver
        for match in calls.finditer(path.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_every_data_file_has_a_source_and_a_licence() -> None:
    rows = re.findall(r"^\| `([^`]+)`", (ROOT / "DATA.md").read_text(encoding="utf-8"), re.M)
    shipped = {
        path.relative_to(ROOT).as_posix()
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("data/**/*")
        if path.is_file() and path.suffix != ".py" and "__pycache__" not in path.parts
    }
    uncovered = {name for name in shipped if not any(name.startswith(row) for row in rows)}
    assert uncovered == set()
