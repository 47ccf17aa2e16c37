"""What a reader copies from the examples and the documentation works."""

import doctest
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import gymnasium
import pytest

import palestra
from palestra.experiments.cli import main
from palestra.registry import catalogue, resolve

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SKIP = "<!-- not run"  # the line before a block that no test runs; it says why
BLOCK = re.compile(
    r"(?P<before>[^\n]*)\n+```(?P<language>python|console)\n(?P<code>.*?)\n```", re.S
)


def blocks(page: Path, language: str) -> list[str]:
    found = BLOCK.finditer("\n" + page.read_text(encoding="utf-8"))
    return [
        match["code"]
        for match in found
        if match["language"] == language and not match["before"].startswith(SKIP)
    ]


def pages_with(language: str) -> list:
    found = [page for page in PAGES if blocks(page, language)]
    return [pytest.param(page, id=str(page.relative_to(ROOT))) for page in found]


def run_python(arguments: list[str], folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "MINARI_DATASETS_PATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a reader would be: in a folder with the examples in it."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    return tmp_path


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_example_runs(example: Path, folder: Path) -> None:
    run_python([str(folder / "examples" / example.name)], folder)


@pytest.mark.parametrize("page", pages_with("python"))
def test_python_blocks_of_a_page_run_one_after_the_other(page: Path, folder: Path) -> None:
    code = "\n\n".join(blocks(page, "python"))
    (folder / "page.py").write_text(code, encoding="utf-8")
    run_python(["page.py"], folder)


@pytest.mark.parametrize("page", pages_with("console"))
def test_commands_of_a_page_succeed(
    page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(folder))
    for block in blocks(page, "console"):
        for line in re.findall(r"^\$ palestra (.*)$", block.replace("\\\n", " "), re.M):
            assert main([*shlex.split(line)]) == 0, line


def test_worked_environment_is_short() -> None:
    lines = (ROOT / "examples" / "own_environment.py").read_text(encoding="utf-8").splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("class Room"))
    assert len(lines) - start <= 40


def test_worked_environment_repeats_its_episodes_at_any_number_of_rows() -> None:
    room = f"{ROOT / 'examples' / 'own_environment.py'}:Room"
    tables = [
        palestra.evaluate("random", room, episodes=20, seed=3, width=width).table
        for width in (1, 7, 20)
    ]
    assert tables[0].equals(tables[1])
    assert tables[0].equals(tables[2])


def test_worked_environment_passes_gymnasiums_checker() -> None:
    from gymnasium.utils.env_checker import check_env

    env = palestra.make(f"{ROOT / 'examples' / 'own_environment.py'}:Room")
    check_env(env, skip_render_check=True)


@pytest.mark.parametrize("name", catalogue())
def test_example_of_a_class_docstring_runs(name: str) -> None:
    cls = type(resolve(name).make(1))
    found = doctest.DocTestFinder(recurse=False).find(cls, globs={"gymnasium": gymnasium})
    assert any(test.examples for test in found), f"{name} has no example"
    for test in found:
        assert doctest.DocTestRunner().run(test).failed == 0


def public_errors() -> set[str]:
    """Classes of exceptions and warnings that a user can meet, read from the source."""
    raised = re.compile(
        r"^class ([A-Z]\w+)\((?:\w+, )*\w*(?:Error|Warning|MalformedFile|ItemLost)\)"
    )
    found = {
        match[1]
        for path in (ROOT / "core").glob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if (match := raised.match(line))
    }
    # what WorkerDied and TimeLimitExceeded have in common; and what becomes a MalformedFile
    return found - {"ItemLost", "NotMatlab"}


def test_every_error_and_warning_is_explained() -> None:
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    explained = set(re.findall(r"^\| `(\w+)` \|", page, re.M))
    assert explained == public_errors()
