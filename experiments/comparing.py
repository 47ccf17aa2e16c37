"""What `palestra evaluate` and `palestra compare` show: a table, JSON, files for papers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from palestra.claims import Quantity
from palestra.disk import write_atomic
from palestra.figures import FORMS as PICTURES
from palestra.figures import Picture, distributions, static_picture
from palestra.play import table_columns
from palestra.registry import anchors_of, did_you_mean, is_registered, resolve
from palestra.report import Report
from palestra.rollout import Comparison, Evaluation, compare
from palestra.run_comparison import TrainingComparison, compare_runs
from palestra.stats import Interval, PairedDifference
from palestra.table_files import FORMS as TABLES
from palestra.table_files import write_table

from .commands.terminal import print_json, print_table

NOT_THERE = "not a number in every episode"


def check_forms(out: Path | None, plot: Path | None) -> None:
    """Refuse files of other forms before anything is played."""
    pictures = (*PICTURES, "html")
    if plot is not None and _form(plot) not in pictures:
        raise ValueError(f"--plot: got {plot}, allowed a name that ends in .{', .'.join(pictures)}")
    if out is not None and out.suffix and not out.is_dir() and not _is_table(out):
        raise ValueError(
            f"--out: got {out}, allowed a table ({', '.join(TABLES)}) or the name of a folder"
        )


def is_run(text: str) -> bool:
    """Whether an argument is a run folder; a registered environment never is."""
    path = Path(text)
    if is_registered(text) or not path.is_dir():
        return False
    return (path / "run.json").exists() or any(path.glob("*/run.json"))


def play(
    environment: str,
    policies: Sequence[str],
    metric: str,
    out: Path | None,
    *,
    settings: dict[str, Any],
    **arguments: Any,
) -> Comparison:
    """Let policies play the same episodes; a metric that is not there is said before."""
    env = resolve(environment).make(1, **settings)
    columns = [name for name in table_columns(env) if name != "episode"]
    env.close()
    if metric not in columns:
        raise ValueError(
            f"--metric: got {metric!r}{did_you_mean(metric, columns)} Allowed: {', '.join(columns)}"
        )
    run = None if out is None or _is_table(out) else out
    return compare(policies, environment, run=run, settings=settings, **arguments)


def show_evaluations(
    evaluations: Mapping[str, Evaluation], environment: str, as_json: bool
) -> None:
    """Means of every column."""
    _show(*_means(evaluations, environment), as_json)


def show_comparison(
    result: Comparison,
    environment: str,
    metric: str,
    out: Path | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Means of every column, and paired differences of one."""
    document, rows = _means(result.evaluations, environment)
    document["differences"] = {}
    for name in result.evaluations:
        if name != result.reference:
            difference = result.difference(name, metric)
            document["differences"][name] = asdict(difference)
            rows.append((f"{name} - {result.reference}", metric, *_difference(difference)))
    table = _paired_table(result, environment, metric)
    _write_picture(plot, lambda: _spread(result, metric), *table)
    if out is not None and _is_table(out):
        write_table(out, *table)
    _show(document, rows, as_json)


def show_runs(
    folders: Sequence[str], metric: str, out: Path | None, plot: Path | None, as_json: bool
) -> None:
    """Runs beside each other; nothing is played."""
    if out is not None and not _is_table(out):
        raise ValueError(f"--out: got {out}, allowed a table: {', '.join(TABLES)}")
    found = compare_runs(folders, metric)
    if isinstance(found, Comparison):
        environment = next(iter(found.evaluations.values())).environment
        show_comparison(found, environment, metric, out, plot, as_json)
        return
    _show_trainings(found, out, plot, as_json)


def _show_trainings(
    found: TrainingComparison, out: Path | None, plot: Path | None, as_json: bool
) -> None:
    document = found.to_json()
    columns, rows = found.columns(), found.rows()
    title = f"{found.environment}: {found.metric} at the end of the common axis"
    _write_picture(plot, found.picture, title, columns, rows)
    if out is not None:
        write_table(out, title, columns, rows)
    if as_json:
        print_json(document)
        return
    print_table(title, columns, rows)


def _means(
    evaluations: Mapping[str, Evaluation], environment: str
) -> tuple[dict[str, Any], list[tuple[str, ...]]]:
    known = is_registered(environment)  # of a run folder, code that it names is not run
    entry = resolve(environment).entry if known else None
    anchors = anchors_of(entry) if entry is not None else None
    document: dict[str, Any] = {"environment": environment, "policies": {}}
    rows: list[tuple[str, ...]] = []
    for name, evaluation in evaluations.items():
        means = evaluation.means()
        for column, mean in means.items():
            shown = ("-", NOT_THERE) if mean is None else (f"{mean.estimate:.6g}", _span(mean))
            rows.append((name, column, *shown))
        document["seed"], document["episodes"] = evaluation.seed, evaluation.episodes
        plain = {column: mean and vars(mean) for column, mean in means.items()}
        document["policies"][name] = {"means": plain, "path": evaluation.path}
        scored = means.get(anchors.metric) if anchors is not None else None
        if anchors is not None and scored is not None:
            score = anchors.normalised(scored.estimate)
            document["policies"][name]["normalised"] = score
            rows.append((name, "normalised score", f"{score:.4f}", "0 random, 1 bound"))
    return document, rows


def _show(document: dict[str, Any], rows: Sequence[tuple[str, ...]], as_json: bool) -> None:
    if as_json:
        print_json(document)
        return
    title = f"{document['environment']}: {document['episodes']} episodes of seed {document['seed']}"
    print_table(title, ("policy", "what", "mean", "95 % interval"), rows)


def _paired_table(
    result: Comparison, environment: str, metric: str
) -> tuple[str, Sequence[str], list[list[Any]]]:
    one = next(iter(result.evaluations.values()))
    caption = (
        f"{environment}: {one.episodes} episodes of seed {one.seed}; means with 95 % intervals"
    )
    columns = ("policy", metric, f"difference to {result.reference}", "correlation")
    rows = []
    for name, evaluation in result.evaluations.items():
        row: list[Any] = [name, Quantity.of(evaluation.mean(metric)), None, None]
        if name != result.reference:
            paired = result.difference(name, metric)
            row[2] = Quantity.of(paired.difference)
            row[3] = None if paired.correlation is None else f"{paired.correlation:.2f}"
        rows.append(row)
    return caption, columns, rows


def _spread(result: Comparison, metric: str) -> Picture:
    values = {name: e.column(metric) for name, e in result.evaluations.items()}
    return distributions(values, x_label=metric)


def _write_picture(
    path: Path | None,
    draw: Callable[[], Picture],
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
) -> None:
    """A still picture; or a page with the table, on which one can zoom and ask for values."""
    if path is None:
        return
    form = _form(path)
    if form != "html":
        write_atomic(path, static_picture(draw().figure, form))
        return
    page = Report(title)
    page.plot(title, *draw())
    page.table(title, columns, rows)
    page.write(path)


def _form(path: Path) -> str:
    return path.suffix.lower().removeprefix(".")


def _is_table(path: Path) -> bool:
    return path.suffix.lower() in TABLES and not path.is_dir()


def _span(interval: Interval) -> str:
    if interval.low is None:
        return str(interval.rule)
    return f"{interval.low:.6g} to {interval.high:.6g}"


def _difference(paired: PairedDifference) -> tuple[str, str]:
    text = _span(paired.difference)
    if paired.correlation is not None:
        text += f" (correlation {paired.correlation:.2f}"
        text += f", variance ratio {paired.variance_ratio:.2f})" if paired.variance_ratio else ")"
    return f"{paired.difference.estimate:.6g}", text
