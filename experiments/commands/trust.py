"""`palestra verify` and `palestra show`: is a file what it says, and what does it say?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .app import HOLDS, MALFORMED, REFUTED, app
from .options import AsJson
from .terminal import print_json, print_table


@app.command()
def verify(
    path: Annotated[Path, typer.Argument(help="A certificate; a run folder, or a folder of them.")],
    as_json: AsJson = False,
) -> int:
    """Check a certificate again from the file alone; recompute the hashes of run folders."""
    if path.is_file():
        return _verify_certificate(path, as_json)
    return _verify_runs(path, as_json)


@app.command()
def show(
    path: Annotated[Path, typer.Argument(help="A certificate.")],
    as_json: AsJson = False,
) -> int:
    """Print what a certificate says, without checking whether it is true."""
    from palestra.certificates.files import Certificate

    certificate = Certificate.load(path)
    if as_json:
        print_json(certificate.document())
    else:
        print(certificate)
    return HOLDS


def _verify_certificate(path: Path, as_json: bool) -> int:
    from palestra.certificates.files import Certificate
    from palestra.certificates.verify import verify as check

    problems = check(path)
    claim = Certificate.load(path).claim
    if as_json:
        print_json({"holds": not problems, "kind": claim.kind, "problems": list(problems)})
    else:
        print(claim.statement)
        for problem in problems:
            print(f"refuted: {problem}")
        if not problems:
            print("holds: recomputed from the file alone")
    return REFUTED if problems else HOLDS


def _verify_runs(path: Path, as_json: bool) -> int:
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
