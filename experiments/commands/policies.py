"""`palestra evaluate`, `merge`, `compare` and `export`: policies and their scores."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .app import HOLDS, REFUTED, app
from .options import (
    Address,
    AsJson,
    Out,
    Quiet,
    Seed,
    Set,
    Shard,
    Strict,
    TimeLimit,
    Where,
    Workers,
    executor_of,
    settings_of,
    shard_of,
)
from .terminal import print_json, print_table, say


@app.command()
def evaluate(
    environment: str,
    policy: Annotated[str, typer.Option(help="A name, run folder, file, or module:object.")],
    episodes: Annotated[int, typer.Option(help="How many.")] = 1000,
    seed: Seed = None,
    width: Annotated[int, typer.Option(help="Rows that advance together.")] = 64,
    stochastic: Annotated[bool, typer.Option(help="Sample actions.")] = False,
    settings: Set = None,
    out: Out = None,
    executor: Where = "in-process",
    workers: Workers = None,
    address: Address = None,
    time_limit: TimeLimit = None,
    shard: Shard = None,
    strict: Strict = False,
    record: Annotated[
        bool, typer.Option("--record", help="Keep every step too, in the folder of --out.")
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> int:
    """Play episodes with a policy; means with intervals of the return and every metric."""
    from palestra.rollout import evaluate as evaluate_policy

    from ..comparing import show_evaluations

    result = evaluate_policy(
        policy,
        environment,
        episodes=episodes,
        seed=seed,
        width=width,
        deterministic=not stochastic,
        settings=settings_of(settings),
        run=out,
        progress=not quiet,
        executor=executor_of(executor, workers, address, time_limit),
        shard=shard_of(shard),
        strict=strict,
        record="trajectories" if record else None,
    )
    show_evaluations({policy: result}, environment, as_json)
    return HOLDS


@app.command()
def merge(
    folder: Annotated[Path, typer.Argument(help="The run folder that shards have filled.")],
    as_json: AsJson = False,
) -> int:
    """Check that the shards of an evaluation are complete, and seal the run."""
    from palestra.rollout import IncompleteRun
    from palestra.rollout import merge as merge_run

    from ..comparing import show_evaluations

    try:
        result = merge_run(folder)
    except IncompleteRun as gap:
        say(str(gap))
        return REFUTED
    show_evaluations({result.policy: result}, result.environment, as_json)
    return HOLDS


@app.command()
def compare(
    what: Annotated[
        list[str], typer.Argument(help="An environment and policies to play; or run folders.")
    ],
    episodes: Annotated[int | None, typer.Option(help="How many to play; 1000.")] = None,
    seed: Seed = None,
    width: Annotated[int | None, typer.Option(help="Rows that advance together; 64.")] = None,
    metric: Annotated[str, typer.Option(help="The column that is compared.")] = "return",
    settings: Set = None,
    out: Annotated[
        Path | None,
        typer.Option(help="A table (.tex, .csv, .md); or the run folder of what is played."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Curves or distributions: .svg, .png, .pdf or .html.")
    ] = None,
    executor: Where = "in-process",
    workers: Workers = None,
    address: Address = None,
    time_limit: TimeLimit = None,
    strict: Strict = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> int:
    """Compare policies on the same episodes, or finished runs; the first is the reference.

    If the first argument is a run folder, all are, and nothing is played.
    """
    from ..comparing import check_forms, is_run, play, show_comparison, show_runs

    check_forms(out, plot)
    if is_run(what[0]):
        playing = {
            "--episodes": episodes, "--seed": seed, "--width": width, "--set": settings,
            "--workers": workers, "--address": address, "--time-limit": time_limit,
        }  # fmt: skip
        for name, value in playing.items():
            if value is not None:
                raise ValueError(f"{name}: got {value!r}, but run folders are not played")
        show_runs(what, metric, out, plot, as_json)
        return HOLDS
    environment, *policies = what
    result = play(
        environment,
        policies,
        metric,
        out,
        progress=not quiet,
        episodes=1000 if episodes is None else episodes,
        seed=seed,
        width=64 if width is None else width,
        settings=settings_of(settings),
        executor=executor_of(executor, workers, address, time_limit),
        strict=strict,
    )
    show_comparison(result, environment, metric, out, plot, as_json)
    return HOLDS


@app.command()
def export(
    environment: str,
    policy: Annotated[str, typer.Option(help="A name, run folder, file, or module:object.")],
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("policy.onnx"),
    agent: Annotated[str | None, typer.Option(help="Of a policy with one part an agent.")] = None,
    settings: Set = None,
    as_json: AsJson = False,
) -> int:
    """Write a policy as an ONNX file that runs without palestra, checked against the original."""
    from palestra.onnx_export import export_onnx

    written = export_onnx(policy, environment, out, agent=agent, settings=settings_of(settings))
    if as_json:
        print_json(vars(written))
        return HOLDS
    rows = [("input", name, kind) for name, kind in written.inputs.items()]
    rows += [("output", name, kind) for name, kind in written.outputs.items()]
    print_table(f"{written.path}: one row of a batch", ("", "name", "type"), rows)
    print(
        f"{written.observations} observations compared; difference {written.mean_difference:.2g} "
        f"on average, {written.largest_difference:.2g} at most"
    )
    return HOLDS
