"""Pictures: the isochromats on the Bloch sphere, and the sequence that brought them there.

The frame of a picture is drawn once; a new state only draws what moves over it, so that an
animation costs milliseconds a picture. Colours are Okabe and Ito's, safe for the colour-blind.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from .bloch import Ensemble, pulse_and_delay
from .events import Event, EventList, run

Array = npt.NDArray[Any]

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#6b7280"
INK, PAPER, SPHERE = "#1f2937", "#ffffff", "#f3f6fa"

MOST_LABELS = 12  # pulses whose phases are written
LABEL_GAP, LETTER = 0.05, 0.015  # least gap of phases, and width of a letter, of the time axis
PANEL_POINTS = 300.0  # width of the panel of pulses
MOST_POINTS = 20_000  # of the curves

_AZIMUTH, _ELEVATION = math.radians(-60.0), math.radians(18.0)


def project(m: Array) -> tuple[Array, Array, Array]:
    """Where vectors (3, ...) appear on paper (right, up), and how near they are (> 0: in front)."""
    ca, sa = math.cos(_AZIMUTH), math.sin(_AZIMUTH)
    ce, se = math.cos(_ELEVATION), math.sin(_ELEVATION)
    right = -sa * m[0] + ca * m[1]
    inward = ca * m[0] + sa * m[1]
    return right, ce * m[2] - se * inward, ce * inward + se * m[2]


class Scene:
    """Three panels: Bloch sphere, sequence diagram, and magnetisation against time.

    Args:
        title: what stands above the sphere.

    Raises:
        ImportError: matplotlib is not installed.
    """

    def __init__(self, title: str) -> None:
        try:
            from matplotlib.backends.backend_agg import FigureCanvasAgg
            from matplotlib.figure import Figure
        except ImportError as missing:
            raise ImportError(
                'drawing needs matplotlib: pip install "palestra[report]"'
            ) from missing
        self._figure: Any = Figure(figsize=(9.6, 4.8), dpi=100, facecolor=PAPER)
        self._canvas: Any = FigureCanvasAgg(self._figure)
        self._sphere: Any = self._figure.add_axes((0.0, 0.02, 0.46, 0.88))
        self._pulses: Any = self._figure.add_axes((0.53, 0.57, 0.45, 0.33))
        self._curves: Any = self._figure.add_axes((0.53, 0.12, 0.45, 0.33))
        self._figure.text(0.02, 0.94, title, color=INK, fontsize=13, fontweight="bold")
        self._frame_sphere()
        self._background: dict[float, Any] = {}

    # ------------------------------------------------------------------------------- what stands

    def _frame_sphere(self) -> None:
        axes = self._sphere
        axes.set_aspect("equal")
        axes.set_axis_off()
        axes.set_xlim(-1.35, 1.35)
        axes.set_ylim(-1.3, 1.35)
        turn = np.linspace(0, 2 * np.pi, 181)
        axes.fill(np.cos(turn), np.sin(turn), color=SPHERE, zorder=0)
        axes.plot(np.cos(turn), np.sin(turn), color="#cbd5e1", lw=1.2, zorder=1)
        zero, c, s = np.zeros_like(turn), np.cos(turn), np.sin(turn)
        for circle in (np.array([c, s, zero]), np.array([c, zero, s]), np.array([zero, c, s])):
            right, up, near = project(circle)
            for part, alpha in ((near >= 0, 0.9), (near < 0, 0.35)):
                axes.plot(
                    np.where(part, right, np.nan),
                    np.where(part, up, np.nan),
                    color="#cbd5e1",
                    lw=0.9,
                    alpha=alpha,
                    zorder=1,
                )
        for name, axis in (("x", 0), ("y", 1), ("z", 2)):
            tip = np.zeros(3)
            tip[axis] = 1.0
            right, up, _ = project(tip)
            axes.annotate(
                "",
                (1.12 * right, 1.12 * up),
                (0, 0),
                arrowprops={"arrowstyle": "-|>", "color": GREY, "lw": 1.0},
                zorder=2,
            )
            axes.text(
                1.22 * right, 1.22 * up, name, color=INK, fontsize=12, ha="center", va="center"
            )

    def _frame_time(self, span: float) -> None:
        """Axes of the two panels over time, for a span in ms."""
        for axes in (self._pulses, self._curves):
            axes.clear()
            axes.set_xlim(-0.03 * span, 1.03 * span)
            axes.tick_params(colors=INK, labelsize=9)
            for side in ("top", "right"):
                axes.spines[side].set_visible(False)
            for side in ("left", "bottom"):
                axes.spines[side].set_color("#9ca3af")
        self._pulses.set_title(
            "Pulses: flip angle, phase above", fontsize=10, color=INK, loc="left"
        )
        self._pulses.set_ylim(0, 235)
        self._pulses.set_yticks([0, 90, 180])
        self._pulses.set_ylabel("flip angle (deg)", fontsize=9, color=INK)
        self._pulses.tick_params(labelbottom=False)
        self._curves.set_title("Magnetisation", fontsize=10, color=INK, loc="left")
        self._curves.set_ylim(-1.08, 1.08)
        self._curves.set_yticks([-1, 0, 1])
        self._curves.set_ylabel("in units of $M_0$", fontsize=9, color=INK)
        self._curves.set_xlabel("time since the sequence began (ms)", fontsize=9, color=INK)
        for level, style in ((1.0, ":"), (0.0, "-")):
            self._curves.axhline(level, color="#d1d5db", lw=0.8, ls=style, zorder=0)
        handles = [
            self._curves.plot([], [], color=BLUE, lw=2, label=r"$\langle M_z\rangle$")[0],
            self._curves.plot([], [], color=ORANGE, lw=2, label=r"$|\langle M_{xy}\rangle|$")[0],
            self._curves.plot(
                [], [], color=GREEN, lw=1.5, ls="--", label=r"$\langle|M_{xy}|\rangle$"
            )[0],
        ]
        self._curves.legend(
            handles=handles,
            loc="lower right",
            bbox_to_anchor=(1.0, 0.98),
            ncols=3,
            fontsize=9,
            frameon=False,
            handlelength=1.4,
            columnspacing=1.2,
        )

    # -------------------------------------------------------------------------------- what moves

    def draw(
        self,
        m: Array,
        weight: Array,
        events: EventList,
        curves: Array,
        caption: str,
        duration: float | None = None,
    ) -> Array:
        """One picture.

        Args:
            m: isochromats now, (3, N).
            weight: their shares, (N,).
            events: the sequence so far.
            curves: rows time (s), mean Mz, |mean Mxy|, mean |Mxy|: (4, K).
            caption: a line below the title.
            duration: length of the time axis, s; None is the duration of the events.

        Returns:
            uint8 (480, 960, 3).
        """
        if duration is None:
            duration = events.duration
        span = _round_up(1e3 * max(duration, 1e-3))
        if span not in self._background:
            self._frame_time(span)
            self._canvas.draw()
            self._background[span] = self._canvas.copy_from_bbox(self._figure.bbox)
        self._canvas.restore_region(self._background[span])
        for axes in (self._pulses, self._curves):
            axes.set_xlim(-0.03 * span, 1.03 * span)
        moving = [
            *self._isochromats(m, weight),
            *self._bars(events),
            *self._lines(curves),
            self._figure.text(0.02, 0.89, caption, color=GREY, fontsize=10),
        ]
        for artist in moving:
            (artist.axes or self._figure).draw_artist(artist)
        picture = np.asarray(self._canvas.buffer_rgba())[..., :3].copy()
        for artist in moving:
            artist.remove()
        return picture

    def _isochromats(self, m: Array, weight: Array) -> list[Any]:
        right, up, near = project(m)
        order = np.argsort(near)
        depth = 0.45 + 0.55 * (near[order] + 1) / 2  # what is behind the sphere's middle is paler
        segments = np.zeros((m.shape[1], 2, 2))
        segments[:, 1, 0], segments[:, 1, 1] = right[order], up[order]
        from matplotlib.collections import LineCollection

        spokes = LineCollection(list(segments), colors=BLUE, linewidths=0.9, alpha=0.3, zorder=3)
        self._sphere.add_collection(spokes, autolim=False)
        dots = self._sphere.scatter(
            right[order], up[order], s=26 * depth, c=BLUE, alpha=depth, linewidths=0, zorder=4
        )
        x, y, _ = project(m @ weight)
        (mean,) = self._sphere.plot([0, x], [0, y], color=ORANGE, lw=3, zorder=5)
        (tip,) = self._sphere.plot([x], [y], "o", color=ORANGE, ms=7, zorder=5)
        label = self._sphere.text(
            0, -1.2, "blue: isochromats    orange: their mean", color=GREY, fontsize=9, ha="center"
        )
        return [spokes, dots, mean, tip, label]

    def _bars(self, events: EventList) -> list[Any]:
        """Pulses as bars, receiver windows as a strip; phases where there is room for them."""
        from matplotlib.collections import LineCollection

        begins = np.cumsum([0.0, *(event.duration for event in events)])[:-1].tolist()
        bars = [
            (1e3 * begun, math.degrees(event.theta), math.degrees(event.phi))
            for begun, event in zip(begins, events, strict=True)
            if event.theta != 0.0
        ]
        windows = [
            [(1e3 * (begun + event.t_pulse + t), 14.0) for t in (r.first, r.last)]
            for begun, event in zip(begins, events, strict=True)
            if (r := event.receive) is not None
        ]
        span = self._pulses.get_xlim()[1]
        gaps = [b[0] - a[0] for a, b in itertools.pairwise(bars)]
        room = PANEL_POINTS * min(gaps, default=span) / span  # between neighbours, points
        drawn: list[Any] = [
            LineCollection(windows, colors=GREEN, linewidths=8, alpha=0.4, capstyle="butt"),
            LineCollection(
                [[(time, 0.0), (time, abs(flip))] for time, flip, _ in bars],
                colors=BLUE,
                linewidths=min(6.0, max(0.6, 0.6 * room)),
                capstyle="butt",
            ),
        ]
        for collection in drawn:
            self._pulses.add_collection(collection, autolim=False)
        if len(bars) <= MOST_LABELS:
            drawn += [
                self._pulses.text(time, height + 8, words, color=INK, fontsize=9, ha=side)
                for time, height, words, side in _phases(bars, span)
            ]
        return drawn

    def _lines(self, curves: Array) -> list[Any]:
        t = 1e3 * curves[0]
        styles = ((BLUE, 2.0, "-"), (ORANGE, 2.0, "-"), (GREEN, 1.5, "--"))
        return [
            self._curves.plot(t, curve, color=color, lw=width, ls=style)[0]
            for curve, (color, width, style) in zip(curves[1:], styles, strict=True)
        ]


def _phases(
    bars: list[tuple[float, float, float]], span: float
) -> Iterator[tuple[float, float, str, str]]:
    """Where (time, height, side) phases are written: those of pulses close together as one text.

    A text that would reach into the next one is left out.
    """
    groups: list[list[tuple[float, float, float]]] = []
    for bar in bars:
        if groups and bar[0] - groups[-1][-1][0] < LABEL_GAP * span:
            groups[-1].append(bar)
        else:
            groups.append([bar])
    free = -math.inf
    for group in groups:
        words = ", ".join(f"{phase:.0f}°" for _, _, phase in group)
        alone = len(group) == 1
        time, width = group[0][0], LETTER * len(words) * span
        begins = time - width / 2 if alone else time
        if begins >= free and (alone or begins + width <= 1.03 * span):
            free = begins + width
            yield time, max(abs(flip) for _, flip, _ in group), words, "center" if alone else "left"


def follow(
    events: EventList, ensemble: Ensemble, m: Array, points: int = 32
) -> tuple[Array, Array]:
    """Magnetisation along a sequence, at up to `points` times in each delay.

    A long sequence gets fewer, two at least, so that there are not many more than `MOST_POINTS`.

    Args:
        events: the sequence.
        ensemble: one experiment.
        m: start state (1, 3, N), left as it is.
        points: how many in each delay.

    Returns:
        Curves (4, K): time (s), mean Mz, |mean Mxy|, mean |Mxy|; and the states (K, 3, N).
    """
    points = max(2, min(points, MOST_POINTS // max(len(events), 1)))
    times, states, begun = [0.0], [m[0].copy()], 0.0
    m = np.array(m, np.float64)
    for event in events:
        m = _pulse(event, ensemble, m)
        begun += event.t_pulse
        for k in range(points):
            times.append(begun + event.tau * k / (points - 1))
            states.append(m[0].copy())
            if k < points - 1:
                pulse_and_delay(m, ensemble, 0.0, 0.0, event.tau / (points - 1))
        if event.spoil:
            m[:, :2] = 0.0
        begun += event.tau
    path = np.array(states)
    w = ensemble.weight
    transverse = path[:, 0] + 1j * path[:, 1]
    curves = (np.array(times), path[:, 2] @ w, abs(transverse @ w), abs(transverse) @ w)
    return np.array(curves), path


def states_at(
    times: Array, events: EventList, ensemble: Ensemble, m: Array
) -> Iterator[tuple[int, Array]]:
    """The state at ascending times of a sequence, and how many events have begun by then.

    Args:
        times: s, (K,); those after the end get the state there.
        events: the sequence.
        ensemble: one experiment.
        m: start state (1, 3, N), left as it is.
    """
    m, begun, waiting = np.array(m, np.float64), 0.0, list(times)
    for k, event in enumerate(events):
        while waiting and waiting[0] < begun + event.duration:
            here, _ = event.split(max(waiting.pop(0) - begun, 0.0))
            yield k + 1, run(EventList((here,)), ensemble, m).m[0]
        m = _pulse(event, ensemble, m)
        pulse_and_delay(m, ensemble, 0.0, 0.0, event.tau)
        if event.spoil:
            m[:, :2] = 0.0
        begun += event.duration
    for _ in waiting:
        yield len(events), m[0].copy()


def _pulse(event: Event, ensemble: Ensemble, m: Array) -> Array:
    """The state after an event's pulse; a hard one acts in place."""
    if event.t_pulse > 0.0:
        return run(EventList((Event(event.theta, event.phi, event.t_pulse),)), ensemble, m).m
    pulse_and_delay(m, ensemble, event.theta, event.phi, 0.0)
    return m


def _round_up(span: float) -> float:
    """The next of 1, 2, 5, 10, 20, 50, ...: few spans, so few backgrounds."""
    decade = 10.0 ** math.floor(math.log10(span))
    return next(step * decade for step in (1.0, 2.0, 5.0, 10.0) if span <= step * decade)
