"""`palestra check` and `palestra new-env`: environments of your own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .app import HOLDS, REFUTED, app
from .options import AsJson, Quiet, Set, settings_of
from .terminal import print_json, print_table


@app.command("check")
def check_command(
    target: str,
    settings: Set = None,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings fail too.")] = False,
    isolate: Annotated[
        bool, typer.Option(help="In processes of its own, which a hang cannot harm.")
    ] = True,
    time_limit: Annotated[float, typer.Option(help="Seconds that one call may take.")] = 30.0,
    scripts: Annotated[
        bool, typer.Option(help="Print the smallest program that shows each finding.")
    ] = True,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> int:
    """Check anyone's environment: determinism, spaces, rows, copies and more."""
    from ..checking import check_aloud, programs, table_rows

    found = check_aloud(target, settings_of(settings), isolate, time_limit, progress=not quiet)
    if as_json:
        print_json(found.to_json() | {"holds": found.holds(strict)})
    else:
        if scripts and (shown := programs(found)):
            print(shown)
        title = (
            f"{found.environment}: {len(found.errors)} errors, {len(found.warnings)} warnings, "
            f"{found.seconds:.1f} s"
        )
        print_table(title, ("check", "result", "where", "what"), table_rows(found))
    return HOLDS if found.holds(strict) else REFUTED


@app.command("new-env")
def new_env(
    name: Annotated[str, typer.Argument(help="Of the environment, such as WaterTank.")],
    out: Annotated[Path | None, typer.Option(help="The folder; a new one, or empty.")] = None,
    as_json: AsJson = False,
) -> int:
    """Write a package with an environment, its test and its entry point."""
    from palestra.new_env import write_package

    folder = write_package(name, out)
    if as_json:
        print_json({"folder": str(folder)})
    else:
        print(f"{folder}: now `pip install -e {folder}`, then `palestra check {name}`")
    return HOLDS
