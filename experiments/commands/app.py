"""The command-line application, and the exit codes of its commands."""

from __future__ import annotations

import typer

app = typer.Typer(
    help="palestra: environments, agents, controllers and certificates for simulation and control.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

HOLDS, REFUTED, USAGE, MALFORMED, INCONCLUSIVE = range(5)
