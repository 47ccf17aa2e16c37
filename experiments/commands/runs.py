"""`palestra run` and `palestra report`: headline experiments, and the pages of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .app import HOLDS, REFUTED, app
from .options import AsJson, Config, Out, Quiet, Seed, Set
from .terminal import print_json, print_table


@app.command()
def run(
    name: str,
    preset: Annotated[str, typer.Option(help="full, or smoke (within a minute).")] = "full",
    seed: Seed = None,
    config: Config = None,
    settings: Set = None,
    sample: Annotated[
        str | None, typer.Option(help="Your own: a preset or file; short for --set sample=...")
    ] = None,
    out: Out = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> int:
    """Run a headline experiment; the same command goes on with an interrupted run."""
    from .. import experiment as experiments

    own = [] if sample is None else [f"sample={sample}"]
    chosen = experiments.configure(name, preset, config, [*(settings or []), *own], seed)
    folder = out or Path("runs") / f"{chosen.name}-{_tag(chosen)}"
    outcome = experiments.run(chosen, folder, progress=not quiet)
    if as_json:
        print_json(outcome.document)
    else:
        findings = outcome.findings
        print_table(chosen.summary, findings.columns, findings.rows)
        verdict = {True: "holds", False: "REFUTED", None: "not applicable"}
        claims = [
            (c.name, str(c.quantity), c.bound_text(), verdict[c.holds]) for c in findings.claims
        ]
        print_table("Claims", ("claim", "measured", "bound", ""), claims)
        print(f"report: {outcome.folder / 'report.html'}")
    return HOLDS if outcome.holds else REFUTED


def _tag(experiment: Any) -> str:
    """A short name of the options, so that other options get another folder."""
    import hashlib

    from palestra.config import dump_toml, resolved

    return hashlib.blake2b(dump_toml(resolved(experiment)).encode(), digest_size=4).hexdigest()


@app.command()
def report(
    folder: Annotated[
        Path | None,
        typer.Argument(help="A run folder, or a folder of evaluations; with --all, of runs."),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="One page that lists all runs below (default: runs).")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Where to write the page.")] = None,
    as_json: AsJson = False,
) -> int:
    """Write the page of a run folder (again), or a page of all runs."""
    if every:
        from ..index_page import write_index

        page, rows = write_index(folder or Path("runs"), out)
        if as_json:
            print_json({"report": str(page), "runs": rows})
        else:
            print(f"{page}: {len(rows)} runs")
        return HOLDS
    if folder is None:
        raise ValueError("folder: not given; name a run folder, or list all of them by --all")
    from ..pages import write_page

    page = write_page(folder, out)
    if as_json:
        print_json({"report": str(page)})
    else:
        print(page)
    return HOLDS
