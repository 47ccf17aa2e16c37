"""`palestra nmr`: pulse programs out, measured data in, certificates of event lists."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from .app import HOLDS, REFUTED, app
from .options import AsJson
from .terminal import print_json, say

MOST_CHANGES = 20  # shown

nmr = typer.Typer(
    help="Nuclear magnetic resonance: event lists and measured data.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(nmr, name="nmr")


@nmr.command()
def export(
    events: Annotated[Path, typer.Argument(help="An event list: .csv, .json, .seq or .txt.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="What to write, in the same formats.")],
    sample: Annotated[
        str, typer.Option(help="A preset or TOML file: the limits of its instrument hold.")
    ] = "oil",
    obey: Annotated[
        bool, typer.Option("--obey", help="Round phases and lengthen delays to obey the limits.")
    ] = False,
    no_spoilers: Annotated[
        bool, typer.Option("--no-spoilers", help="Leave ideal spoilers out.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Write an event list for an instrument: Pulseq (.seq), Bruker's style (.txt), CSV, JSON."""
    from palestra.envs.nmr.exports import export as write
    from palestra.envs.nmr.exports import read_events, without_spoilers
    from palestra.envs.nmr.limits import obeying
    from palestra.envs.nmr.sample import load_sample

    instrument = load_sample(sample).instrument
    listed, changes = read_events(events), list[str]()
    if no_spoilers:
        listed = without_spoilers(listed, changes)
    if obey:
        obeyed = obeying(listed, instrument)
        listed = obeyed.events
        changes += obeyed.changes
    changes += write(listed, out, instrument)
    for change in changes[:MOST_CHANGES]:
        say(change)
    if len(changes) > MOST_CHANGES:
        say(f"and {len(changes) - MOST_CHANGES} more changes; --json lists all")
    if as_json:
        print_json({"out": str(out), "changes": changes})
    else:
        print(out)
    return HOLDS


@nmr.command()
def fit(
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Measurements whose files say what they are, and folders (FIDs)."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The sample, a TOML file.")
    ] = None,
    ir: Annotated[Path | None, typer.Option("--ir", help="An inversion recovery.")] = None,
    cpmg: Annotated[Path | None, typer.Option("--cpmg", help="An echo train.")] = None,
    fid: Annotated[Path | None, typer.Option("--fid", help="A free induction decay.")] = None,
    reference_hz: Annotated[
        float | None, typer.Option(help="Where a peak of the FID is known to stand, Hz.")
    ] = None,
    conjugate: Annotated[
        bool, typer.Option("--conjugate", help="Turn the sign of all frequencies.")
    ] = False,
    isotope: Annotated[str | None, typer.Option(help="1H, 13C, 19F or 31P.")] = None,
    field: Annotated[float | None, typer.Option(help="Static field, T.")] = None,
    scans: Annotated[int, typer.Option(help="How many scans the FID is the mean of.")] = 1,
    time_zero: Annotated[
        float, typer.Option(help="When the FID's signal began, on the clock of its file, s.")
    ] = 0.0,
    as_json: AsJson = False,
) -> int:
    """A sample from an inversion recovery, an echo train and an FID, with its uncertainties."""
    from palestra.envs.nmr.readers import read_measurement
    from palestra.envs.nmr.sample_from_data import fit_sample

    given = [(path, None) for path in files or []]
    chosen = [(path, kind) for path, kind in ((ir, "ir"), (cpmg, "cpmg"), (fid, "fid")) if path]
    measured = [read_measurement(path, kind) for path, kind in [*given, *chosen]]
    if conjugate:
        measured = [one.conjugated() for one in measured]
    name = out.stem if out else "sample"
    found = fit_sample(measured, reference_hz, isotope, field, scans, time_zero, name)
    text = found.to_toml()
    if out is not None:
        out.write_text(text, encoding="utf-8")
    if as_json:
        print_json(
            {"sample": found.document, "findings": found.findings(), "lacks_fit": found.lacks_fit}
        )
    elif out is None:
        sys.stdout.write(text)
    else:
        print("\n".join(found.findings()))
    for lacking in found.lacks_fit:
        say(f"{lacking}: the model does not describe the values (p < 0.001)")
    return REFUTED if found.lacks_fit else HOLDS


@nmr.command()
def certify(
    events: Annotated[Path, typer.Argument(help="An event list: .csv, .json, .seq or .txt.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The certificate, a .cert file.")],
    sample: Annotated[
        str, typer.Option(help="A preset or TOML file: what is in the magnet.")
    ] = "oil",
    energy: Annotated[
        bool, typer.Option("--energy", help="That pulses do no work, instead of the time bound.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of the magnet that is drawn.")] = 0,
    as_json: AsJson = False,
) -> int:
    """Certify an event list: its time against the least time that its precision takes."""
    from palestra.certificates.nmr import energy_budget_certificate, time_bound_certificate
    from palestra.envs.nmr.exports import read_events
    from palestra.envs.nmr.sample import load_sample

    what = load_sample(sample)
    listed, spins = read_events(events), what.magnet(seed)
    made = (
        energy_budget_certificate(listed, spins, sample=what.name)
        if energy
        else time_bound_certificate(listed, spins, what.N0, sample=what.name)
    )
    path = made.save(out)
    if as_json:
        print_json({"out": str(path), "claim": made.document()["claim"]})
    else:
        print(made)
        print(path)
    return HOLDS
