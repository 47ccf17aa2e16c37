"""One self-contained HTML page for a run: the result, tables, plots, an animated episode.

Nothing leaves the page: its Content-Security-Policy blocks every request, and lets no script run
but those whose hashes it names (Plotly, inlined once, and `data/report.js`). Everything given
is escaped. Without scripts the tables stay and each plot and episode is a still picture. Every
number stands in a `<data value="...">` element with all its digits, beside the rounded text.
"""

from __future__ import annotations

import base64
import hashlib
import html
import io
import json
import math
import numbers
import os
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from .claims import (
    NO_BREAK_SPACE,
    Claim,
    Quantity,
    all_hold,
    format_number,
    written_decimals,
)
from .disk import write_atomic
from .still import require_report_extra, static_picture

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


class Link(NamedTuple):
    """A cell that leads to another page; `href` is relative, or empty for no link."""

    text: str
    href: str


Cell = Quantity | Link | float | int | bool | str | None

ANIMATION_BYTES = 3_000_000
"""An animation above this size shows every second (third, ...) frame, and its caption says so."""

_MISSING = "—"
_PLOT_HEIGHT = 400
_FIRST_SCRIPT = 'document.documentElement.classList.add("scripted")'  # before the first paint


class Report:
    """A page under construction. Parts appear in the order in which they are added.

    Example:
        >>> report = Report("nmr-relax", subtitle="PPO against waiting and DEFT, sample oil")
        >>> report.headline([("PPO", Quantity(1.19, (1.17, 1.21), "s")), ("Floor", 0.98)])
        >>> report.table("Return time", ["policy", "time"], [["PPO", Quantity(1.19, None, "s")]])
        >>> "1.190" in report.html()
        True
    """

    def __init__(self, title: str, *, subtitle: str = "", wide: bool = False) -> None:
        self.title = title
        self.subtitle = subtitle
        self._body = "<body class=wide>" if wide else "<body>"
        self._parts: list[str] = []
        self._tables = 0
        self._figures = 0
        self._plotted = False

    def headline(self, rows: Sequence[tuple[str, Cell] | tuple[str, Cell, str]]) -> None:
        """The box that answers the reader's question: yours, best known, bound.

        Args:
            rows: `(label, number)` or `(label, number, note)`; the first one is the reader's own.

        Raises:
            ValueError: no rows.
        """
        if not rows:
            raise ValueError("rows = []: a headline needs at least one number")
        items = []
        for label, cell, *note in rows:
            number, interval = _cell(cell)
            items.append(
                f"<div><dt>{_escape(label)}</dt><dd><span class=number>{number}</span>"
                + (f" <span class=interval>{interval}</span>" if interval else "")
                + (f"<span class=note>{_escape(note[0])}</span>" if note and note[0] else "")
                + "</dd></div>"
            )
        self._parts.append(
            '<section class=headline aria-label="Result"><dl>' + "".join(items) + "</dl></section>"
        )

    def section(self, title: str) -> None:
        """Start a section: a heading of the second level."""
        self._parts.append(f"<h2>{_escape(title)}</h2>")

    def text(self, paragraph: str) -> None:
        """Plain prose; an empty line starts a new paragraph. There is no markup."""
        for piece in paragraph.split("\n\n"):
            if piece.strip():
                self._parts.append(f"<p>{_escape(' '.join(piece.split()))}</p>")

    def table(
        self, caption: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]], note: str = ""
    ) -> None:
        """A table whose first column names the rows.

        Args:
            caption: what the table shows.
            columns: headings; put a column's unit here or in its quantities.
            rows: one cell a column. Plain floats of a column are printed with the same decimals
                (four significant digits of the largest); None prints a dash.
            note: smaller text beneath.

        Raises:
            ValueError: no columns, or a row of another length.
        """
        if not columns:
            raise ValueError("columns = []: a table needs at least one column")
        for index, row in enumerate(rows):
            if len(row) != len(columns):
                raise ValueError(f"rows[{index}] has {len(row)} cells: must be {len(columns)}")
        decimals = [_column_decimals([row[k] for row in rows]) for k in range(len(columns))]
        numeric = [_is_numeric([row[k] for row in rows]) for k in range(len(columns))]
        body = []
        for row in rows:
            cells = []
            for k, cell in enumerate(row):
                number, interval = _cell(cell, decimals[k])
                content = number + (f" <span class=interval>{interval}</span>" if interval else "")
                kind = " class=n" if numeric[k] else ""
                cells.append(
                    f"<th scope=row{kind}>{content}</th>" if k == 0 else f"<td{kind}>{content}</td>"
                )
            body.append(f"<tr>{''.join(cells)}</tr>")
        self._add_table(caption, columns, numeric, body, note)

    def catalogue(
        self, caption: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]], note: str = ""
    ) -> None:
        """A long table, which scripts can filter and sort. Arguments as for `table`."""
        self.table(caption, columns, rows, note)
        self._parts[-1] = self._parts[-1].replace("<table>", "<table class=catalogue>", 1)

    def claims(self, claims: Sequence[Claim]) -> None:
        """The claims: our number, the bound, whether it holds, the published figure beside it."""
        applicable = [claim for claim in claims if claim.holds is not None]
        held = sum(claim.holds is True for claim in applicable)
        body = []
        for claim in claims:
            number, interval = _cell(claim.quantity)
            verdict = {
                True: "<span class=holds>✓ holds</span>",
                False: "<span class=fails>✗ fails</span>",
                None: "<span class=muted>not applicable</span>",
            }[claim.holds]
            body.append(
                f"<tr><th scope=row>{_escape(claim.name)}</th><td class=n>{number}"
                + (f" <span class=interval>{interval}</span>" if interval else "")
                + f"</td><td class=n>{_data(claim.bound, claim.bound_text())}</td>"
                f"<td>{verdict}</td><td>{_escape(claim.source) or _MISSING}</td></tr>"
            )
        others = len(claims) - len(applicable)
        summary = f"{held} of {len(applicable)} claims hold" + (
            f"; {others} not applicable here" if others else ""
        )
        self._add_table(
            f"Claims: {summary}",
            ("claim", "measured", "bound", "verdict", "published"),
            (False, True, True, False, False),
            body,
            "" if all_hold(claims) else "A claim that fails makes the command end with code 1.",
        )

    def plot(self, caption: str, figure: Figure, fallback_png: bytes | None = None) -> None:
        """A Plotly figure, and the still picture that is seen without scripts and on paper.

        Args:
            caption: what the figure shows; also its text for screen readers.
            figure: its template and width are replaced by the page's own theme, which follows the
                reader's choice of dark or light.
            fallback_png: PNG, WebP or SVG bytes; None draws it from the figure, which is possible
                for scatter, bar and heat-map traces (`still.static_picture`).

        Raises:
            ValueError: the picture is of another format, or the figure needs one to be given.
            ImportError: plotly or matplotlib is missing.
        """
        if fallback_png is None:
            fallback_png = static_picture(figure)
        document = json.loads(figure.to_json(engine="json"))  # strict JSON: NaN is null
        layout = {k: v for k, v in document["layout"].items() if k not in ("template", "width")}
        height = layout.setdefault("height", _PLOT_HEIGHT)
        data = _json_block({"data": document["data"], "layout": layout})
        alt = _escape(caption)
        self._plotted = True
        self._add_figure(
            "plot",
            caption,
            f'<div class=canvas role=img aria-label="{alt}" style="height:{int(height)}px" hidden>'
            f"</div><script type=application/json>{data}</script>"
            f'<img class=static src="{_picture_uri(fallback_png)}" alt="{alt}">',
        )

    def animation(self, caption: str, frames: Sequence[NDArray[np.uint8]], fps: float) -> None:
        """An episode with play, pause and a slider; first, middle and last frame without scripts.

        Args:
            caption: what is seen.
            frames: arrays uint8 `(H, W, 3)` of one shape. Equal frames are stored once.
            fps: frames a second.

        Raises:
            ValueError: no frames, another shape or dtype, or `fps` not positive and finite.
            ImportError: Pillow is missing.
        """
        _check_frames(frames, fps)
        pictures, order, stride = _encode_frames(frames)
        if stride > 1:
            caption = f"{caption} (every {_ordinal(stride)} frame is shown)"
        height, width = frames[0].shape[:2]
        alt = _escape(caption)
        still_frames = sorted({0, len(order) // 2, len(order) - 1})
        stills = "".join(
            f'<img src="{pictures[order[k]]}" width={width} height={height} '
            f'alt="{alt}, frame {k + 1} of {len(order)}">'
            for k in still_frames
        )
        data = _json_block({"pictures": pictures, "order": order, "fps": fps / stride})
        last = len(order) - 1
        self._add_figure(
            "player",
            caption,
            f'<div class=stage hidden><canvas width={width} height={height} role=img aria-label="'
            f'{alt}"></canvas><div class=controls><button type=button>Play</button>'
            f'<input type=range min=0 max={last} value=0 step=1 aria-label="Frame">'
            f"<output>1 / {len(order)}</output></div></div>"
            f"<script type=application/json>{data}</script><div class=static>{stills}</div>",
        )

    def facts(self, facts: Mapping[str, Any]) -> None:
        """How the page came about: versions, seed, machine, date."""
        items = "".join(
            f"<div><dt>{_escape(str(name))}</dt><dd>{_escape(_fact(value))}</dd></div>"
            for name, value in facts.items()
        )
        self._parts.append(f"<dl class=facts>{items}</dl>")

    def html(self) -> str:
        """The page."""
        scripts = [_resource("report.js")]
        if self._plotted:
            scripts.insert(0, _plotly_library())
        hashes = " ".join(f"'sha256-{_sha256(script)}'" for script in (_FIRST_SCRIPT, *scripts))
        policy = (
            f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
            "img-src data: blob:; base-uri 'none'; form-action 'none'"
        )
        title = _escape(self.title)
        subtitle = f"<p class=subtitle>{_escape(self.subtitle)}</p>" if self.subtitle else ""
        body = "\n".join(self._parts)
        tail = "\n".join(f"<script>{script}</script>" for script in scripts)
        return (
            "<!doctype html>\n"
            '<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            '<meta name="color-scheme" content="light dark">\n'
            '<meta name="referrer" content="no-referrer">\n'
            f"<title>{title}</title>\n<script>{_FIRST_SCRIPT}</script>\n<style>\n{_resource('report.css')}</style>\n</head>\n{self._body}\n"
            f"<header><h1>{title}</h1>{subtitle}</header>\n<main>\n{body}\n</main>\n"
            f"{tail}\n</body>\n</html>\n"
        )

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the page; a reader sees the old file or the new one, never half of it."""
        target = Path(path)
        write_atomic(target, self.html().encode("utf-8", "backslashreplace"))
        return target

    def _add_table(
        self,
        caption: str,
        columns: Sequence[str],
        numeric: Sequence[bool],
        body: Sequence[str],
        note: str,
    ) -> None:
        self._tables += 1
        name = f"table-{self._tables}"
        head = "".join(
            f"<th scope=col{' class=n' if right else ''}>"
            f"{_escape(column.replace(' / ', NO_BREAK_SPACE + '/' + NO_BREAK_SPACE))}</th>"
            for column, right in zip(columns, numeric, strict=True)
        )
        self._parts.append(
            f'<div class=scroll role=region tabindex=0 aria-labelledby="{name}"><table>'
            f'<caption id="{name}"><span><b>Table {self._tables}.</b> {_escape(caption)}</span>'
            "</caption>"
            f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
            + (f"<p class=note>{_escape(note)}</p>" if note else "")
        )

    def _add_figure(self, kind: str, caption: str, content: str) -> None:
        self._figures += 1
        self._parts.append(
            f'<figure class={kind} id="figure-{self._figures}"><figcaption>'
            f"<b>Figure {self._figures}.</b> {_escape(caption)}</figcaption>{content}</figure>"
        )


def _escape(text: str) -> str:
    return html.escape(text, quote=True)


def _data(value: float, text: str) -> str:
    return f'<data value="{value!r}">{_escape(text)}</data>'


def _cell(cell: Cell, decimals: int | None = None) -> tuple[str, str]:
    """The markup of a cell's number and of its interval."""
    if cell is None:
        return _MISSING, ""
    if isinstance(cell, Quantity):
        return _data(float(cell.value), cell.text()), _escape(cell.interval_text())
    if isinstance(cell, Link):
        text = _escape(cell.text)
        return (f'<a href="{_escape(quote(cell.href))}">{text}</a>' if cell.href else text), ""
    if isinstance(cell, str):
        return _escape(cell), ""
    if isinstance(cell, bool | np.bool):
        return ("yes" if cell else "no"), ""
    if isinstance(cell, numbers.Integral):
        return _data(int(cell), format_number(int(cell))), ""
    if isinstance(cell, numbers.Real):
        return _data(float(cell), format_number(float(cell), decimals)), ""
    raise TypeError(f"cell = {cell!r}: must be a Quantity, a Link, a number, a string or None")


def _is_number(cell: Cell) -> bool:
    return isinstance(cell, Quantity | numbers.Real) and not isinstance(cell, bool | np.bool)


def _is_numeric(cells: Sequence[Cell]) -> bool:
    given = [cell for cell in cells if cell is not None]
    return bool(given) and all(_is_number(cell) for cell in given)


def _column_decimals(cells: Sequence[Cell]) -> int | None:
    """Common decimals of a column of plain floats; None where magnitudes are too far apart."""
    floats = [abs(float(cell)) for cell in cells if isinstance(cell, float | np.floating)]
    sizes = [size for size in floats if math.isfinite(size) and size > 0]
    if not sizes or max(sizes) > 1000 * min(sizes) or not 1e-4 <= max(sizes) < 1e9:
        return None
    return min(
        max(3 - math.floor(math.log10(max(sizes))), 0),
        max(written_decimals(size) for size in sizes),
    )


def _fact(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_fact(entry)}" for key, entry in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_fact(entry) for entry in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return _MISSING if value is None else str(value)


def _json_block(document: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(document, allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _picture_uri(picture: bytes) -> str:
    if picture.startswith(b"\x89PNG\r\n\x1a\n"):
        kind = "png"
    elif picture[:4] == b"RIFF" and picture[8:12] == b"WEBP":
        kind = "webp"
    elif picture.lstrip()[:5] in (b"<?xml", b"<svg ", b"<svg>"):
        kind = "svg+xml"
    else:
        raise ValueError(f"fallback_png starts with {picture[:8]!r}: must be PNG, WebP or SVG")
    return f"data:image/{kind};base64,{base64.b64encode(picture).decode('ascii')}"


def _check_frames(frames: Sequence[NDArray[np.uint8]], fps: float) -> None:
    if not (fps > 0 and math.isfinite(fps)):
        raise ValueError(f"fps = {fps}: must be positive and finite")
    if len(frames) == 0:
        raise ValueError("frames = []: an animation needs at least one frame")
    shape = frames[0].shape
    for index, frame in enumerate(frames):
        if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
            raise ValueError(
                f"frames[{index}] is {frame.dtype} {frame.shape}: must be uint8 (H, W, 3)"
            )
        if frame.shape != shape:
            raise ValueError(f"frames[{index}] has shape {frame.shape}: the first has {shape}")


def _encode_frames(
    frames: Sequence[NDArray[np.uint8]],
) -> tuple[list[str], list[int], int]:
    """Data URIs of the distinct frames, which one each frame is, and the stride that fits."""
    stride = 1
    while True:
        chosen = frames[::stride]
        pictures: list[str] = []
        known: dict[bytes, int] = {}
        order: list[int] = []
        size = 0
        for frame in chosen:
            key = hashlib.sha256(np.ascontiguousarray(frame).tobytes()).digest()
            if key not in known:
                uri = _picture_uri(_webp(frame))
                size += len(uri)
                if size > ANIMATION_BYTES and len(chosen) > 2:
                    break
                known[key] = len(pictures)
                pictures.append(uri)
            order.append(known[key])
        else:
            return pictures, order, stride
        stride += 1


def _webp(frame: NDArray[np.uint8]) -> bytes:
    """The smaller of lossless (drawings) and lossy at quality 80 (photographs)."""
    try:
        from PIL import Image
    except ImportError:
        require_report_extra("Pillow")
    picture = Image.fromarray(np.ascontiguousarray(frame))
    candidates = []
    for options in ({"lossless": True, "quality": 40}, {"quality": 80}):
        buffer = io.BytesIO()
        picture.save(buffer, "WEBP", **options)
        candidates.append(buffer.getvalue())
    return min(candidates, key=len)


def _ordinal(number: int) -> str:
    return {2: "second", 3: "third"}.get(number, f"{number}th")


def _resource(name: str) -> str:
    return resources.files("palestra").joinpath("data", name).read_text(encoding="utf-8")


def _plotly_library() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        require_report_extra("plotly")
    library: str = get_plotlyjs()
    if "</script" in library.lower() or "<!--" in library:
        raise RuntimeError("this version of plotly.js cannot stand inside a page")
    return library.replace("\r\n", "\n")  # what the browser hashes


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
