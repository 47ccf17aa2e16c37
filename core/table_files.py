"""Tables for papers and spreadsheets: LaTeX, CSV, Markdown."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from pathlib import Path

from .claims import Quantity
from .disk import write_atomic

FORMS = (".tex", ".csv", ".md")
TEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
    "\u00a0": "~", "\u2212": "$-$", "\u2014": "---", "\u221e": r"$\infty$",
}  # fmt: skip

Cell = Quantity | str | int | None


def write_table(
    path: str | os.PathLike[str],
    caption: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Cell]],
) -> Path:
    """Write a table in the form that the suffix names; a file of this name is replaced.

    A quantity is printed with no more digits than its interval supports; in CSV it takes three
    columns, value, low and high, with all digits.

    Args:
        path: ends in `.tex` (needs the package booktabs), `.csv` or `.md`.
        caption: what the table shows; CSV has none.
        columns: heads; the first one names the rows.
        rows: one cell a column; None is left empty.

    Raises:
        ValueError: another suffix.
    """
    target = Path(path)
    forms = {".tex": _tex, ".csv": _csv, ".md": _markdown}
    if target.suffix.lower() not in forms:
        raise ValueError(f"path: {target}: suffix must be one of {', '.join(FORMS)}")
    text = forms[target.suffix.lower()](caption, columns, rows)
    write_atomic(target, text.encode())
    return target


def _tex(caption: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    def line(cells: Sequence[Cell]) -> str:
        return " & ".join(_tex_text(_text(cell)) for cell in cells) + r" \\"

    return "\n".join(
        [
            r"\begin{table}",
            r"  \centering",
            rf"  \caption{{{_tex_text(caption)}}}",
            rf"  \begin{{tabular}}{{{'l' + 'r' * (len(columns) - 1)}}}",
            r"    \toprule",
            f"    {line(columns)}",
            r"    \midrule",
            *(f"    {line(row)}" for row in rows),
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _tex_text(text: str) -> str:
    return "".join(TEX.get(character, character) for character in text)


def _csv(caption: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    measured = [any(isinstance(row[k], Quantity) for row in rows) for k in range(len(columns))]
    head: list[str] = []
    for column, three in zip(columns, measured, strict=True):
        head += [column, f"{column} low", f"{column} high"] if three else [column]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    for row in rows:
        cells: list[object] = []
        for cell, three in zip(row, measured, strict=True):
            if isinstance(cell, Quantity):
                cells += [cell.value, *(cell.interval or ("", ""))]
            else:
                cells += ["" if cell is None else cell, *([""] * 2 if three else [])]
        writer.writerow(cells)
    return text.getvalue()


def _markdown(caption: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    def line(cells: Sequence[Cell]) -> str:
        return "| " + " | ".join(_text(cell).replace("|", "\\|") for cell in cells) + " |"

    rule = "|" + "---|" + "---:|" * (len(columns) - 1)
    return "\n".join([caption, "", line(columns), rule, *(line(row) for row in rows), ""])


def _text(cell: Cell) -> str:
    text = "" if cell is None else str(cell)
    return " ".join(text.split("\n"))
