"""`palestra train` and `palestra sweep`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from .app import HOLDS, REFUTED, app
from .options import (
    Address,
    AsJson,
    Config,
    Out,
    Quiet,
    Seed,
    Set,
    Track,
    Where,
    Workers,
    executor_of,
)
from .terminal import print_json, print_table


@app.command()
def train(
    environment: Annotated[str | None, typer.Argument(help="A target; or use --config.")] = None,
    algorithm: Annotated[str | None, typer.Option(help="Such as ppo, sac, maskable-ppo.")] = None,
    steps: Annotated[int | None, typer.Option(help="Environment steps.")] = None,
    seed: Seed = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or auto.")] = None,
    config: Config = None,
    tuned: Annotated[
        bool, typer.Option("--tuned", help="The options that ship with the environment.")
    ] = False,
    settings: Set = None,
    out: Out = None,
    track: Track = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> int:
    """Train a learner; the same command goes on with an interrupted run."""
    from palestra.train import train as train_run

    given = {
        "environment": environment,
        "algorithm": algorithm,
        "steps": steps,
        "seed": seed,
        "device": device,
    }
    if tuned:
        config = _tuned(environment, algorithm, config)
    chosen, name, learner = _training(config, given, settings)
    folder = out or Path("runs") / f"{name}-{learner}-seed{chosen.seed}"
    trained = train_run(chosen, folder, progress=not quiet, track=track or ())
    if as_json:
        print_json({"folder": str(trained.folder), "curve": trained.curve})
    else:
        print_table(
            f"{name}: return on held-out episodes",
            ("steps", "mean", "95 % interval"),
            [(p["steps"], f"{p['mean']:.4g}", _span(p["low"], p["high"])) for p in trained.curve],
        )
        print(f"run folder: {trained.folder}")
    return HOLDS


def _tuned(environment: str | None, algorithm: str | None, config: Path | None) -> Path:
    """The file of options that ships with an environment for an algorithm."""
    from palestra.config import ConfigError
    from palestra.registry import resolve
    from palestra.shipped import shelf_of

    if environment is None:
        raise ConfigError("environment: not given; --tuned takes the options that ship with it")
    if config is not None:
        raise ConfigError(f"--config: got {config} beside --tuned; give one of them")
    return shelf_of(resolve(environment)).tuned_for((algorithm or "ppo").lower())


def _training(
    config: Path | None, given: dict[str, Any], settings: list[str] | None
) -> tuple[Any, str, str]:
    """A training from file, options and settings; names of its environment and its learner."""
    from palestra.config import ConfigError, apply_settings, build, load_config
    from palestra.registry import kebab, resolve
    from palestra.train import TrainConfig

    options = load_config(config) if config is not None else {}
    options |= {name: value for name, value in given.items() if value is not None}
    options = apply_settings(options, settings or [])
    if "environment" not in options:
        raise ConfigError("environment: not given; name a target, or set it in --config")
    chosen = build(TrainConfig, options)
    name = kebab(resolve(chosen.environment).name)
    learner = chosen.algorithm.rpartition(":")[2].lower()
    return chosen, name.replace("/", "-"), learner.replace("/", "-")


@app.command()
def sweep(
    environment: Annotated[str | None, typer.Argument(help="A target; or use --config.")] = None,
    space: Annotated[
        Path | None, typer.Option(help="TOML or YAML file: the keys that vary, their values.")
    ] = None,
    config: Config = None,
    sampler: Annotated[str, typer.Option(help="grid, random, or tpe (Optuna).")] = "random",
    trials: Annotated[int | None, typer.Option(help="How many; 20. Not for a grid.")] = None,
    seed: Annotated[int, typer.Option(help="Of the sampler; trainings have their own.")] = 0,
    metric: Annotated[str, typer.Option(help="What is scored.")] = "return",
    direction: Annotated[str, typer.Option(help="max or min.")] = "max",
    parallel: Annotated[
        int | None, typer.Option(help="Of tpe: trials drawn before results are told; 4.")
    ] = None,
    storage: Annotated[
        str | None, typer.Option(help="Of tpe: URL of a database; else a file in the folder.")
    ] = None,
    confirm: Annotated[
        int, typer.Option(help="Train the best one again with so many other seeds.")
    ] = 0,
    settings: Set = None,
    out: Out = None,
    executor: Where = "in-process",
    workers: Workers = None,
    address: Address = None,
    time_limit: Annotated[
        float | None, typer.Option("--time-limit", help="Seconds a trial may take in a worker.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="End with the first failure.")] = False,
    track: Track = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> int:
    """Train many configurations and find the best; the same command goes on."""
    from palestra.config import ConfigError, load_config
    from palestra.sweep import sweep as sweep_run

    if space is None:
        raise ConfigError("--space: not given; name a file with the keys that vary")
    chosen, name, learner = _training(config, {"environment": environment}, settings)
    found = sweep_run(
        chosen,
        load_config(space),
        out or Path("runs") / f"{name}-{learner}-{sampler}-seed{seed}",
        sampler=sampler,
        trials=trials,
        seed=seed,
        metric=metric,
        direction=direction,
        parallel=parallel,
        storage=storage,
        confirm=confirm,
        executor=executor_of(executor, workers, address, time_limit),
        strict=strict,
        progress=not quiet,
        track=track or (),
    )
    if as_json:
        print_json(asdict(found))
    else:
        _show_sweep(found, f"{name}: {metric} on held-out episodes")
    return REFUTED if found.best is None else HOLDS


def _show_sweep(found: Any, title: str) -> None:
    keys = list(found.trials[0].parameters)
    short = [key.rpartition(".")[2] for key in keys]
    named = short if len(set(short)) == len(keys) else keys
    columns = ("trial", *named, "score", "95 % interval", "status")
    rows = []
    for trial in found.trials:
        mark = " (best)" if trial is found.best else ""
        status = f"{trial.status}: {trial.message}" if trial.message else trial.status
        rows.append((trial.number, *map(_short, trial.parameters.values()), *_scored(trial)))
        rows[-1] += (status + mark,)
    print_table(title, columns, rows)
    confirmation = found.confirmation
    if confirmation is not None:
        number = confirmation.trial
        rows = [
            (f"trial {number}: best of {len(found.trials)}, same episodes", *_scored(found.best)),
            *[
                (f"again, seed {seed}, other episodes", *_scored(run))
                for seed, run in zip(confirmation.seeds, confirmation.runs, strict=True)
            ],
        ]
        if confirmation.mean is not None:
            mean = confirmation.mean
            count = f"mean of {mean.n} runs again"
            span = mean.rule if mean.low is None else f"{mean.low:.4g} to {mean.high:.4g}"
            rows.append((count, f"{mean.estimate:.4g}", span))
        print_table("The best one, trained again", ("what", "score", "95 % interval"), rows)
    if found.best is not None:
        print(f"best configuration: {found.folder / 'best.toml'}")
    print(f"run folder: {found.folder}")


def _scored(trial: Any) -> tuple[str, str]:
    return "" if trial.score is None else f"{trial.score:.4g}", _span(trial.low, trial.high)


def _span(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{low:.4g} to {high:.4g}"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
