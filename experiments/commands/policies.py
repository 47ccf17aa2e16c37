"""`palestra evaluate`, `merge`, `compare` and `export`: policies and their scores."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

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
    _show_evaluations({policy: result}, environment, as_json, None)
    return HOLDS


@app.command()
def merge(
    folder: Annotated[Path, typer.Argument(help="The run folder that shards have filled.")],
    as_json: AsJson = False,
) -> int:
    """Check that the shards of an evaluation are complete, and seal the run."""
    from palestra.rollout import IncompleteRun
    from palestra.rollout import merge as merge_run

    try:
        result = merge_run(folder)
    except IncompleteRun as gap:
        say(str(gap))
        return REFUTED
    _show_evaluations({result.policy: result}, result.environment, as_json, None)
    return HOLDS


@app.command()
def compare(
    environment: str,
    policies: Annotated[list[str], typer.Argument(help="Policies; the first is the reference.")],
    episodes: Annotated[int, typer.Option(help="How many.")] = 1000,
    seed: Seed = None,
    width: Annotated[int, typer.Option(help="Rows that advance together.")] = 64,
    metric: Annotated[str, typer.Option(help="The column that is compared.")] = "return",
    settings: Set = None,
    out: Out = None,
    executor: Where = "in-process",
    workers: Workers = None,
    address: Address = None,
    time_limit: TimeLimit = None,
    strict: Strict = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> int:
    """Evaluate policies on the same episodes; paired differences to the first."""
    from palestra.play import table_columns
    from palestra.registry import did_you_mean, resolve
    from palestra.rollout import compare as compare_policies

    env = resolve(environment).make(1, **settings_of(settings))
    columns = [name for name in table_columns(env) if name != "episode"]
    env.close()
    if metric not in columns:  # said before anything is played
        raise ValueError(
            f"--metric: got {metric!r}{did_you_mean(metric, columns)} Allowed: {', '.join(columns)}"
        )
    result = compare_policies(
        policies,
        environment,
        episodes=episodes,
        seed=seed,
        width=width,
        settings=settings_of(settings),
        run=out,
        progress=not quiet,
        executor=executor_of(executor, workers, address, time_limit),
        strict=strict,
    )
    _show_evaluations(dict(result.evaluations), environment, as_json, (result, metric))
    return HOLDS


def _show_evaluations(
    evaluations: dict[str, Any], environment: str, as_json: bool, paired: tuple[Any, str] | None
) -> None:
    from palestra.registry import anchors_of, resolve

    entry = resolve(environment).entry
    anchors = anchors_of(entry) if entry is not None else None
    document: dict[str, Any] = {"environment": environment, "policies": {}}
    rows = []
    for name, evaluation in evaluations.items():
        means: dict[str, Any] = {}
        for column in evaluation.table.column_names:
            if column == "episode":
                continue
            try:
                interval = evaluation.mean(column)
            except ValueError as reason:  # a metric that is not a number in every episode
                means[column] = None
                rows.append((name, column, "-", str(reason)))
                continue
            means[column] = vars(interval)
            rows.append((name, column, f"{interval.estimate:.6g}", _span(interval)))
        document["seed"], document["episodes"] = evaluation.seed, evaluation.episodes
        document["policies"][name] = {"means": means, "path": evaluation.path}
        if anchors is not None and means.get(anchors.metric):
            score = anchors.normalised(means[anchors.metric]["estimate"])
            document["policies"][name]["normalised"] = score
            rows.append((name, "normalised score", f"{score:.4f}", "0 random, 1 bound"))
    if paired is not None:
        result, metric = paired
        document["differences"] = {}
        for name in evaluations:
            if name != result.reference:
                difference = result.difference(name, metric)
                document["differences"][name] = asdict(difference)
                rows.append((f"{name} - {result.reference}", metric, *_difference(difference)))
    if as_json:
        print_json(document)
        return
    title = f"{environment}: {document['episodes']} episodes of seed {document['seed']}"
    print_table(title, ("policy", "what", "mean", "95 % interval"), rows)


def _span(interval: Any) -> str:
    if interval.low is None:
        return str(interval.rule)
    return f"{interval.low:.6g} to {interval.high:.6g}"


def _difference(paired: Any) -> tuple[str, str]:
    text = _span(paired.difference)
    if paired.correlation is not None:
        text += f" (correlation {paired.correlation:.2f}"
        text += f", variance ratio {paired.variance_ratio:.2f})" if paired.variance_ratio else ")"
    return f"{paired.difference.estimate:.6g}", text


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
