"""The notebooks, kept as scripts: each runs from top to bottom in a kernel of its own."""

import re
from pathlib import Path

import jupytext
import nbclient
import pytest

SHOWN = re.compile(
    r"\n(result|both|learners)$|^palestra\.(watch|compare)\(", re.M
)  # cells that end in one
NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples" / "notebooks").glob("*.py"))


def test_there_are_notebooks() -> None:
    assert {path.stem for path in NOTEBOOKS} >= {
        "quick_start", "train_and_compare", "sign_off_a_controller", "own_environment",
        "own_data", "scale_out",
    }  # fmt: skip


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path, tmp_path: Path) -> None:
    notebook = jupytext.read(path, fmt="py:percent")
    assert notebook.cells[0].cell_type == "markdown"
    assert notebook.cells[0].source.startswith("# ")  # its title
    place = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=300, resources=place).execute()
    shown = [
        output.data["text/html"]
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if "text/html" in output.get("data", {})
    ]
    assert all("<script" not in markup for markup in shown)
    results = len([cell for cell in notebook.cells if SHOWN.search(cell.source)])
    assert len(shown) == results
