"""How results show themselves in a notebook: plain HTML, no script, everything escaped."""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .figures import Picture
    from .rollout import Comparison, Evaluation


def evaluations_markup(
    environment: str, evaluations: Mapping[str, Evaluation], paired: Comparison | None = None
) -> str:
    """Means of every column by policy, paired differences of the return, and its distribution."""
    one = next(iter(evaluations.values()))
    title = f"{environment}: {one.episodes} episodes of seed {one.seed}"
    means = [evaluation.means() for evaluation in evaluations.values()]
    rows = [[name, *(each[name] for each in means)] for name in means[0]]
    if paired is not None:
        differences = [
            "" if name == paired.reference else str(paired.difference(name).difference)
            for name in evaluations
        ]
        rows.append([f"return, difference to {paired.reference}", *differences])
    from .figures import distributions

    returns = {name: evaluation.column("return") for name, evaluation in evaluations.items()}
    return table_markup(title, ("", *evaluations), rows) + drawn(
        lambda: distributions(returns, x_label="return"), "distribution of the returns"
    )


def training_markup(name: str, curve: Sequence[Mapping[str, Any]]) -> str:
    """A learning curve: its last points, and the picture of all."""
    rows = [[p["steps"], p["mean"], p["low"], p["high"]] for p in curve[-5:]]
    columns = ("steps", "return", "95 % from", "to")
    from .figures import learning_curve

    line = ([p["steps"] for p in curve], [p["mean"] for p in curve])
    return table_markup(f"training {name}", columns, rows) + drawn(
        lambda: learning_curve({"return": [line]}), "learning curve"
    )


def drawn(picture: Callable[[], Picture], text: str) -> str:
    """The still picture of a figure, where the extra `report` is installed."""
    try:
        return picture_markup(picture().png, text)
    except ImportError:  # the extra `report` is not installed: the table is enough
        return ""


def table_markup(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table with a caption. Floats get six significant digits; None is a dash."""
    head = "".join(f'<th scope="col">{html.escape(str(column))}</th>' for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(_cell(cell))}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    return (
        f'<table><caption style="text-align:left">{html.escape(title)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def picture_markup(png: bytes, text: str) -> str:
    """A still picture; `text` says what it shows to those who do not see it."""
    source = base64.b64encode(png).decode()
    return f'<img alt="{html.escape(text)}" src="data:image/png;base64,{source}">'


def _cell(value: Any) -> str:
    if value is None:
        return "—"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
