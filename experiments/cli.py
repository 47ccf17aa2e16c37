"""The command line: `palestra COMMAND`. Every command answers `--help`; data goes to stdout,
progress and messages to stderr.

Exit codes: 0 holds, 1 refuted or check failed, 2 usage, 3 malformed or corrupt files,
4 inconclusive, 130 (Ctrl-C) and 143 (SIGTERM, SIGUSR1) interrupted.
"""

from __future__ import annotations

import codecs
import io
import json
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer

app = typer.Typer(
    help="palestra: environments, agents, controllers and certificates for simulation and control.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

HOLDS, REFUTED, USAGE, MALFORMED, INCONCLUSIVE = range(5)
MOST_SHOWN = 1000  # characters of a message that had several lines
INTERRUPTED = "interrupted; run the same command again to go on"

Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An option; repeatable.")
]
Config = Annotated[Path | None, typer.Option("--config", help="Options from a TOML or YAML file.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
Out = Annotated[Path | None, typer.Option("--out", help="The run folder.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Seed; the same seed, the same numbers.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bar.")]
Where = Annotated[
    str, typer.Option("--executor", help="in-process, processes, ray, or auto: the quicker.")
]
Workers = Annotated[
    int | None, typer.Option("--workers", help="Worker processes or Ray tasks at a time.")
]
Address = Annotated[
    str | None, typer.Option("--address", help="Of a Ray cluster; auto: the one of this machine.")
]
TimeLimit = Annotated[
    float | None, typer.Option("--time-limit", help="Seconds a block may take in a worker.")
]
Shard = Annotated[
    str | None, typer.Option("--shard", metavar="I/N", help="Play the blocks i, i + n, ... only.")
]
Strict = Annotated[
    bool, typer.Option("--strict", help="Refuse to go on with a run of another machine.")
]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    Args:
        arguments: of the command line; None takes those of the process.
    """
    _die_politely()
    _print_whatever_the_encoding()
    given = list(sys.argv[1:] if arguments is None else arguments)
    usual, warnings.formatwarning = warnings.formatwarning, _warning_line
    try:
        code = int(app(given, prog_name="palestra", standalone_mode=False) or 0)
        if code == 130:  # what typer makes of KeyboardInterrupt
            _say(INTERRUPTED)
        sys.stdout.flush()
        return code
    except (KeyboardInterrupt, _Terminated) as stop:
        _say(INTERRUPTED)
        return 143 if isinstance(stop, _Terminated) else 130
    except BrokenPipeError:  # whoever read our output has left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except BaseException as problem:  # code that a command was given may raise anything
        return _explain(problem)
    finally:
        warnings.formatwarning = usual


def _warning_line(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    """A warning as a person wants it: what, and not where in our code."""
    return f"palestra: {_one_line(str(message))}\n"


def _explain(problem: BaseException) -> int:
    """One line for a person's mistake or a broken file; a traceback for our own."""
    if isinstance(problem, SystemExit) and isinstance(problem.__context__, BrokenPipeError):
        return 141  # typer's own way to say that nobody reads on
    if isinstance(problem, SystemExit):  # no command leaves so: it would pass for a result
        leaving = RuntimeError(f"code that this command ran called sys.exit({problem.code!r})")
        leaving.__cause__, problem = problem, leaving
    if os.environ.get("PALESTRA_TRACEBACK"):
        raise problem
    shown = getattr(problem, "format_message", None)
    if shown is not None:  # a usage error of the command line itself
        context = getattr(problem, "ctx", None)
        if type(problem).__name__ == "NoArgsIsHelpError":
            print(shown(), file=sys.stderr)
        else:
            text = str(shown())
            _say(text + (f" (see {context.command_path} --help)" if context else ""))
        return USAGE
    kinds = {kind.__name__ for kind in type(problem).__mro__}  # names: to import them takes time
    if kinds & {"MalformedFile", "UnsafeFile"}:
        _say(str(problem))
        return MALFORMED
    if isinstance(problem, OSError) and problem.strerror:
        _say(f"{problem.filename}: {problem.strerror}" if problem.filename else problem.strerror)
        return USAGE
    if isinstance(problem, ValueError | TypeError | ImportError | OSError) or "RunLocked" in kinds:
        _say(str(problem))
        for note in getattr(problem, "__notes__", ()):
            _say(note)
        return USAGE
    if isinstance(problem, MemoryError):
        _say(f"out of memory: {problem}; a smaller --width, or fewer rows, need less")
        return REFUTED
    _say(f"{type(problem).__name__}: {problem}")
    for note in getattr(problem, "__notes__", ()):
        _say(note)
    if not kinds & {"NotFinite", "WorkerDied", "TimeLimitExceeded"}:
        _say("set PALESTRA_TRACEBACK=1 to see where")
    return REFUTED


SPELLED = {"≤": "<=", "≥": ">=", "−": "-", "∞": "infinity", "\u00a0": " ", "\u2009": " "}


def _print_whatever_the_encoding() -> None:
    """Spell what an encoding of the terminal lacks, rather than fail when the work is done.

    A stream that was closed takes everything and keeps nothing.
    """

    def spell(problem: UnicodeError) -> tuple[str, int]:
        assert isinstance(problem, UnicodeEncodeError)
        lacking = problem.object[problem.start : problem.end]
        return "".join(SPELLED.get(character, "?") for character in lacking), problem.end

    codecs.register_error("palestra.spell", spell)
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - open as long as the process
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() != "utf-8":
            stream.reconfigure(errors="palestra.spell")


class _Terminated(BaseException):
    """SIGTERM or SIGUSR1 arrived: leave at the next bytecode, as for Ctrl-C."""


def _die_politely() -> None:
    """Leave a run that can go on when the system, or a cluster's scheduler, asks to end."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        signal.signal(number, signal.SIG_DFL)  # a second one ends the process at once
        raise _Terminated

    for name in ("SIGTERM", "SIGUSR1"):
        number = getattr(signal, name, None)  # Windows has no SIGUSR1
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            try:
                signal.signal(number, stop)
            except ValueError:
                return  # not in the main thread: whoever runs us decides


def _say(message: str) -> None:
    print(f"palestra: {_one_line(message)}", file=sys.stderr)


def _one_line(message: str) -> str:
    """A message on one line, whatever the library that wrote it put into it."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    text = " ".join(lines)
    return (
        text if len(lines) < 2 or len(text) <= MOST_SHOWN else text[:MOST_SHOWN].rstrip() + " ..."
    )


def _print_json(document: Any) -> None:
    print(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False, default=str))


def _print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*(Text("" if cell is None else str(cell)) for cell in row))
    console = Console()
    if not console.is_terminal:
        console = Console(width=max(100, console.width))
    console.print(table)


@app.command("list")
def list_command(
    check: Annotated[bool, typer.Option(help="Import the plug-ins; show the broken ones.")] = False,
    as_json: AsJson = False,
) -> int:
    """Environments, policies and experiments, with those of plug-ins."""
    from palestra.registry import catalogue, kebab, plugins

    from . import CATALOGUE as EXPERIMENTS

    policies = _policy_names()
    found = plugins(load=check)
    if as_json:
        _print_json(
            {
                "environments": [
                    {"id": e.id, "summary": e.summary, "agents": e.agents}
                    for e in catalogue().values()
                ],
                "plugins": [vars(p) for p in found],
                "policies": policies,
                "experiments": sorted(EXPERIMENTS),
            }
        )
    else:
        rows = [(kebab(e.name), e.id, e.summary) for e in catalogue().values()]
        _print_table("Environments", ("name", "id", "what it asks"), rows)
        if found:
            listed = [(p.name, p.distribution, p.entry_point, p.problem) for p in found]
            _print_table("Plug-ins", ("name", "distribution", "target", "problem"), listed)
        _print_table("Policies", ("name", "target"), sorted(policies.items()))
        _print_table("Experiments", ("name", "target"), sorted(EXPERIMENTS.items()))
    return REFUTED if check and any(p.problem for p in found) else HOLDS


def _policy_names() -> dict[str, str]:
    """Names only: the module of policies would import numba."""
    import importlib.metadata

    from palestra.controllers import CATALOGUE

    plugged = importlib.metadata.entry_points(group="palestra.policies")
    return {**{point.name: point.value for point in plugged}, **CATALOGUE, "random": "built in"}


@app.command()
def info(target: str, settings: Set = None, as_json: AsJson = False) -> int:
    """What an environment is: spaces, horizon, settings, metrics, anchors."""
    import inspect

    from palestra.gym_batch import GymBatch
    from palestra.registry import anchors_of, resolve

    found = resolve(target)
    env = found.make(1, **_settings(settings))
    kind: type[Any] = type(env.copies[0].unwrapped if isinstance(env, GymBatch) else env)
    document = {
        "name": found.name,
        "target": found.reference,
        "observation_space": str(env.observation_space),
        "action_space": str(env.action_space),
        "agents": list(env.agents),
        "horizon": env.horizon,
        "settings": [p for p in inspect.signature(kind).parameters if p != "rows"],
        "options": ["episode", *env.option_names],
        "metrics": list(env.metrics()),
        "anchors": vars(a) if found.entry and (a := anchors_of(found.entry)) else None,
    }
    env.close()
    if as_json:
        _print_json({**document, "doc": inspect.getdoc(kind)})
        return HOLDS
    _print_table(found.name, ("", ""), [(k, v) for k, v in document.items() if v is not None])
    print(inspect.getdoc(kind) or "")
    return HOLDS


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
    from .checking import check_aloud, programs, table_rows

    found = check_aloud(target, _settings(settings), isolate, time_limit, progress=not quiet)
    if as_json:
        _print_json(found.to_json() | {"holds": found.holds(strict)})
    else:
        if scripts and (shown := programs(found)):
            print(shown)
        title = (
            f"{found.environment}: {len(found.errors)} errors, {len(found.warnings)} warnings, "
            f"{found.seconds:.1f} s"
        )
        _print_table(title, ("check", "result", "where", "what"), table_rows(found))
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
        _print_json({"folder": str(folder)})
    else:
        print(f"{folder}: now `pip install -e {folder}`, then `palestra check {name}`")
    return HOLDS


def _settings(settings: Sequence[str] | None) -> dict[str, Any]:
    from palestra.config import apply_settings

    return apply_settings({}, settings or [])


@app.command()
def train(
    environment: Annotated[str | None, typer.Argument(help="A target; or use --config.")] = None,
    algorithm: Annotated[str | None, typer.Option(help="Such as ppo, sac, maskable-ppo.")] = None,
    steps: Annotated[int | None, typer.Option(help="Environment steps.")] = None,
    seed: Seed = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or auto.")] = None,
    config: Config = None,
    settings: Set = None,
    out: Out = None,
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
    chosen, name, learner = _training(config, given, settings)
    folder = out or Path("runs") / f"{name}-{learner}-seed{chosen.seed}"
    trained = train_run(chosen, folder, progress=not quiet)
    if as_json:
        _print_json({"folder": str(trained.folder), "curve": trained.curve})
    else:
        _print_table(
            f"{name}: return on held-out episodes",
            ("steps", "mean", "95 % interval"),
            [
                (p["steps"], f"{p['mean']:.4g}", f"{p['low']:.4g} to {p['high']:.4g}")
                for p in trained.curve
            ],
        )
        print(f"run folder: {trained.folder}")
    return HOLDS


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
        executor=_executor(executor, workers, address, time_limit),
        strict=strict,
        progress=not quiet,
    )
    if as_json:
        _print_json(asdict(found))
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
    _print_table(title, columns, rows)
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
        _print_table("The best one, trained again", ("what", "score", "95 % interval"), rows)
    if found.best is not None:
        print(f"best configuration: {found.folder / 'best.toml'}")
    print(f"run folder: {found.folder}")


def _scored(trial: Any) -> tuple[str, str]:
    score = "" if trial.score is None else f"{trial.score:.4g}"
    return score, "" if trial.low is None else f"{trial.low:.4g} to {trial.high:.4g}"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


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
        settings=_settings(settings),
        run=out,
        progress=not quiet,
        executor=_executor(executor, workers, address, time_limit),
        shard=_shard(shard),
        strict=strict,
        record="trajectories" if record else None,
    )
    _show_evaluations({policy: result}, environment, as_json, None)
    return HOLDS


def _executor(name: str, workers: int | None, address: str | None, limit: float | None) -> Any:
    """The executor that the options describe."""
    from palestra.executors import EXECUTORS

    given = {"workers": workers, "address": address, "time_limit": limit}
    chosen = EXECUTORS.get(name)
    if chosen is None:
        raise ValueError(f"--executor: got {name!r}, allowed {', '.join(EXECUTORS)}")
    options = {key: value for key, value in given.items() if value is not None}
    for key in options.keys() - getattr(chosen, "__dataclass_fields__", {}).keys():
        raise ValueError(f"--{key.replace('_', '-')}: the executor {name!r} has no such option")
    return chosen(**options)


def _shard(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    index, slash, of = text.partition("/")
    if not (slash and index.isdecimal() and of.isdecimal()):
        raise ValueError(f"--shard: got {text!r}, allowed I/N, such as 0/8")
    return int(index), int(of)


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
        _say(str(gap))
        return REFUTED
    _show_evaluations({result.policy: result}, result.environment, as_json, None)
    return HOLDS


@app.command()
def replay(
    folder: Annotated[Path, typer.Argument(help="A run folder of evaluate --record.")],
    episode: Annotated[int, typer.Argument(help="Its number.")],
    environment: Annotated[
        str | None, typer.Option(help="What to play it in, if the run names a file or module.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Play a recorded episode again from its stored actions; compare bit for bit."""
    from palestra.trajectories import Trajectories

    from .replaying import step_rows

    played = Trajectories(folder).replay(episode, environment)
    if as_json:
        _print_json(played.to_json())
    else:
        recorded = played.recorded
        title = f"{played.environment}: episode {episode} of seed {played.seed}"
        _print_table(title, ("step", "action", "reward", "ends"), step_rows(recorded))
        if played.difference is None:
            print(f"the same, bit for bit, in all {len(recorded)} steps")
        else:
            print(f"NOT the same: {played.difference}")
    return HOLDS if played.same else REFUTED


@app.command()
def dataset(
    folder: Annotated[Path, typer.Argument(help="A run folder of evaluate --record.")],
    out: Annotated[
        str, typer.Option("--out", metavar="ID", help="Of the dataset, such as room/expert-v0.")
    ],
    description: Annotated[str | None, typer.Option(help="What it is, for people.")] = None,
    author: Annotated[str | None, typer.Option(help="Who made it.")] = None,
    author_email: Annotated[str | None, typer.Option(help="Where to ask.")] = None,
    code_permalink: Annotated[str | None, typer.Option(help="Where the code is.")] = None,
    as_json: AsJson = False,
) -> int:
    """Write recorded episodes as a Minari dataset, which minari.load_dataset reads."""
    from palestra.trajectories import Trajectories

    written = Trajectories(folder).to_minari(
        out,
        description=description,
        author=author,
        author_email=author_email,
        code_permalink=code_permalink,
    )
    document = {
        "dataset": out,
        "folder": str(written.storage.data_path.parent),
        "episodes": int(written.total_episodes),
        "steps": int(written.total_steps),
    }
    if as_json:
        _print_json(document)
    else:
        print("{dataset}: {episodes} episodes, {steps} steps, in {folder}".format(**document))
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

    env = resolve(environment).make(1, **_settings(settings))
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
        settings=_settings(settings),
        run=out,
        progress=not quiet,
        executor=_executor(executor, workers, address, time_limit),
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
        _print_json(document)
        return
    title = f"{environment}: {document['episodes']} episodes of seed {document['seed']}"
    _print_table(title, ("policy", "what", "mean", "95 % interval"), rows)


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

    written = export_onnx(policy, environment, out, agent=agent, settings=_settings(settings))
    if as_json:
        _print_json(vars(written))
        return HOLDS
    rows = [("input", name, kind) for name, kind in written.inputs.items()]
    rows += [("output", name, kind) for name, kind in written.outputs.items()]
    _print_table(f"{written.path}: one row of a batch", ("", "name", "type"), rows)
    print(
        f"{written.observations} observations compared; difference {written.mean_difference:.2g} "
        f"on average, {written.largest_difference:.2g} at most"
    )
    return HOLDS


@app.command()
def run(
    name: str,
    preset: Annotated[str, typer.Option(help="full, or smoke (within a minute).")] = "full",
    seed: Seed = None,
    config: Config = None,
    settings: Set = None,
    out: Out = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> int:
    """Run a headline experiment; the same command goes on with an interrupted run."""
    from . import experiment as experiments

    chosen = experiments.configure(name, preset, config, settings or [], seed)
    folder = out or Path("runs") / f"{chosen.name}-{_tag(chosen)}"
    outcome = experiments.run(chosen, folder, progress=not quiet)
    if as_json:
        _print_json(outcome.document)
    else:
        findings = outcome.findings
        _print_table(chosen.summary, findings.columns, findings.rows)
        verdict = {True: "holds", False: "REFUTED", None: "not applicable"}
        claims = [
            (c.name, str(c.quantity), c.bound_text(), verdict[c.holds]) for c in findings.claims
        ]
        _print_table("Claims", ("claim", "measured", "bound", ""), claims)
        print(f"report: {outcome.folder / 'report.html'}")
    return HOLDS if outcome.holds else REFUTED


def _tag(experiment: Any) -> str:
    """A short name of the options, so that other options get another folder."""
    import hashlib

    from palestra.config import dump_toml, resolved

    return hashlib.blake2b(dump_toml(resolved(experiment)).encode(), digest_size=4).hexdigest()


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="The folder of a training, sweep or evaluation.")],
    out: Annotated[Path | None, typer.Option(help="Where to write the page.")] = None,
    as_json: AsJson = False,
) -> int:
    """Write the page of a run folder (again)."""
    from .pages import write_page

    page = write_page(folder, out)
    if as_json:
        _print_json({"report": str(page)})
    else:
        print(page)
    return HOLDS


@app.command()
def warmup(
    targets: Annotated[list[str] | None, typer.Argument()] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> int:
    """Compile the kernels of environments ahead of time, so that the first run does not wait."""
    from palestra.progress import progress_bar
    from palestra.registry import catalogue

    from .measure import compile_kernels

    chosen = targets or list(catalogue())
    seconds = {}
    with progress_bar("compiling kernels", len(chosen), not quiet) as advance:
        for target in chosen:
            seconds[target] = compile_kernels(target)
            if not as_json:
                print(f"{target}: {seconds[target]:.1f} s")
            advance(1)
    if as_json:
        _print_json({"seconds": seconds})
    return HOLDS


@app.command()
def anchors(
    target: str,
    episodes: Annotated[int, typer.Option(help="How many.")] = 1024,
    seed: Seed = 0,
    quiet: Quiet = False,
) -> int:
    """Measure an environment's anchors: random policy, best classical one, bound."""
    from .measure import measure_anchors

    _print_json(measure_anchors(target, episodes, seed or 0, progress=not quiet))
    return HOLDS


@app.command()
def version(as_json: AsJson = False) -> int:
    """Versions of palestra and what it stands on, for a bug report."""
    from palestra.machine import machine

    document = machine()
    if as_json:
        _print_json(document)
    else:
        for key, value in document.items():
            print(f"{key}: {value}")
    return HOLDS


if __name__ == "__main__":
    raise SystemExit(main())
