"""`palestra verify`: is a file still what was written?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .app import HOLDS, MALFORMED, app
from .options import AsJson
from .terminal import print_json, print_table


@app.command()
def verify(
    path: Annotated[Path, typer.Argument(help="A run folder, or a folder of them.")],
    as_json: AsJson = False,
) -> int:
    """Recompute the hashes of a run folder, and of every run inside it."""
    from palestra.store import RunFolder

    from ..index_page import find_runs

    runs = list(find_runs(path)) if path.is_dir() else []
    if not runs:
        raise FileNotFoundError(f"{path}: no run folder: there is no run.json in it or below")
    rows, problems = [], {}
    for run in runs:
        try:
            folder = RunFolder.open(run)
            found = list(folder.verify())
            state = "finished" if folder.finished else "no manifest: blocks by their own checksums"
        except ValueError as problem:  # its run.json is damaged, or not one of ours
            found, state = [str(problem)], ""
        problems[str(run)] = found
        rows += [(run, "damaged", problem) for problem in found] or [(run, "sound", state)]
    holds = not any(problems.values())
    if as_json:
        print_json({"holds": holds, "problems": problems})
    else:
        print_table(f"{len(runs)} runs", ("run", "", "what"), rows)
    return HOLDS if holds else MALFORMED
