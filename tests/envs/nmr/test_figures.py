"""Pictures of pulse lists: what they say is true, and nothing of them is lost."""

import math
import warnings

import numpy as np
import pytest
from scipy import stats

from palestra.envs.nmr import figures, pulses, render
from palestra.envs.nmr.events import Event, EventList, run
from palestra.envs.nmr.figures import panels
from palestra.envs.nmr.figures.sequence import Cycle, Timing, cycles, phase_name
from palestra.envs.nmr.sample import load_sample
from palestra.report import Report

from .ensembles import isochromats

CPMG = pulses.cpmg(4e-3, 20, 1.0, 1e-4, 1e-4)
OIL = load_sample("oil")


def words(view):
    return [text for trace in view.figure.data if trace.mode == "text" for text in trace.text]


def titles(view):
    return [note.text for note in view.figure.layout.annotations]


def curve(view, colour, panel=""):
    return next(
        trace
        for trace in view.figure.data
        if trace.mode == "lines" and trace.line.color == colour and trace.yaxis in (f"y{panel}",)
    )


def boxes(view, colour, axis="y"):
    """Rectangles (K, 5) of one colour: their x and y."""
    trace = next(
        t
        for t in view.figure.data
        if t.fill == "toself" and t.line.color == colour and (t.yaxis or "y") == axis
    )
    x, y = (
        np.append(np.asarray(v, float), np.nan).reshape(-1, 6)[:, :5] for v in (trace.x, trace.y)
    )
    return x, y


def test_cycles_cover_a_train_and_a_repeated_measurement():
    assert cycles(CPMG * 25) == [Cycle(0, 22, 25)]
    assert cycles(CPMG) == [
        Cycle(0, 1, 1), Cycle(1, 1, 19), Cycle(20, 1, 1), Cycle(21, 1, 1)
    ]  # fmt: skip
    train = pulses.bssfp(1.0, 4e-3, 400)  # phases alternate: two events a cycle
    assert cycles(train) == [Cycle(0, 1, 1), Cycle(1, 2, 200)]
    assert cycles(EventList()) == []


@pytest.mark.parametrize("seed", range(5))
def test_cycles_spell_the_list_again(seed):
    rng = np.random.default_rng(seed)
    alphabet = [Event(theta=0.1 * k, tau=1e-3) for k in range(3)]
    events = EventList(tuple(alphabet[k] for k in rng.integers(0, 3, 60)))
    spelled = [
        event
        for c in cycles(events)
        for event in events.events[c.first : c.first + c.length] * c.times
    ]
    assert tuple(spelled) == events.events


def test_bars_stand_at_their_times_with_their_angles_and_negative_angles_turn_the_phase():
    events = EventList((Event(math.pi / 2, 0.0, tau=0.2), Event(-math.pi / 3, 0.0, tau=0.3)))
    view = figures.sequence_diagram(events)
    x, y = boxes(view, panels.BLUE)
    np.testing.assert_allclose(x[:, :2].mean(axis=1), [0.0, 200.0], atol=1e-9)  # ms
    np.testing.assert_allclose(y.max(axis=1), [90.0, 60.0])
    assert words(view) == ["90°<br>x", "60°<br>−x"]


def test_a_finite_pulse_is_drawn_as_long_as_it_lasts():
    view = figures.sequence_diagram(
        EventList((Event(math.pi, 0.0, 0.1, tau=0.2), Event(math.pi, 0.0, tau=0.2)))
    )
    x, _ = boxes(view, panels.BLUE)
    np.testing.assert_allclose(x[0, :2], [0.0, 100.0], atol=1e-9)


@pytest.mark.parametrize(
    ("degrees", "name"), [(0.0, "x"), (90.0, "y"), (180.0, "−x"), (270.0, "−y"), (37.4, "37°")]
)
def test_phases_have_the_names_of_axes(degrees, name):
    assert phase_name(degrees) == name


def test_a_thousand_pulses_get_a_beginning_and_the_whole_with_cycles_folded():
    events = CPMG * 50
    view = figures.sequence_diagram(events)
    assert titles(view)[0].startswith("The first 12 of 1050 pulses")
    assert sum("× 50" in text for text in words(view)) == 2
    assert "(22 events, 1.08 s each)" in "".join(words(view))
    x, _ = boxes(view, panels.BLUE, "y2")
    assert len(x) == 1050  # every pulse stands in the whole
    centres = x[:, :2].mean(axis=1)
    expected = Timing.of(events).begins[:-1][Timing.of(events).pulsed]
    np.testing.assert_allclose(centres, expected, atol=1e-9)
    # dead times that no eye can part are not drawn: far fewer areas than windows
    assert len(boxes(view, panels.GREEN, "y2")[0]) <= 2 * 50


def test_words_over_pulses_never_overlap():
    rng = np.random.default_rng(3)
    events = EventList(
        tuple(Event(float(rng.uniform(0.2, 3)), 0.3, tau=float(t)) for t in rng.uniform(0.1, 9, 12))
    )
    view = figures.sequence_diagram(events)
    span, height = np.ptp(view.figure.layout.xaxis.range), np.ptp(view.figure.layout.yaxis.range)
    spots = [
        (t.x[0] / span, t.y[0] / height)
        for t in view.figure.data
        if t.mode == "text" and "°" in t.text[0] and t.yaxis == "y"
    ]
    assert len(spots) >= 6
    for k, (x, y) in enumerate(spots):
        for other_x, other_y in spots[:k]:
            assert abs(x - other_x) > 0.05 or abs(y - other_y) > 0.12


def test_owners_are_named_in_the_strip_or_in_the_legend():
    events = EventList(tuple(Event(1.0, tau=t) for t in (0.5, 0.5, 0.01)))
    view = figures.sequence_diagram(events, ["align", "align", "toggle"])
    assert "align" in words(view)
    shown = [trace.name for trace in view.figure.data if trace.showlegend]
    assert shown == ["toggle"]
    assert view.figure.layout.showlegend
    with pytest.raises(ValueError, match="owners: got 1 names, allowed one an event, 3"):
        figures.sequence_diagram(events, ["align"])


def test_signal_of_a_free_decay_is_drawn_with_its_sign_and_its_noise():
    receive = pulses.receiver(0.2, 0.0, 1e-3)
    fid = EventList((Event(math.pi / 2, 0.0, tau=0.2, receive=receive),), scans=4)
    view = figures.signal_view(fid, isochromats(T1=1.0, T2=0.1), sigma=0.2)
    times, decay = receive.times, np.exp(-receive.times / 0.1)
    for colour, expected in (
        (panels.BLUE, 0 * decay), (panels.ORANGE, -decay), (panels.GREEN, decay)
    ):  # fmt: skip
        drawn = curve(view, colour)
        kept = np.isfinite(np.asarray(drawn.x))
        np.testing.assert_allclose(np.asarray(drawn.x)[kept], 1e3 * times)
        np.testing.assert_allclose(np.asarray(drawn.y)[kept], expected, atol=1e-12)
    _, y = boxes(view, panels.GREY)
    assert (y.min(), y.max()) == (pytest.approx(-0.1), pytest.approx(0.1))  # of four scans' mean
    assert {"real", "imaginary", "magnitude", "± σ"} <= set(words(view))


def test_noise_beyond_the_signal_is_shown_for_a_mean_and_said():
    view = figures.signal_view(CPMG, OIL.magnet(), sigma=11.6)
    assert "σ of the mean of 1000 samples (of one: 11.6)" in titles(view)[0]
    _, y = boxes(view, panels.GREY)
    assert y.max() == pytest.approx(11.6 / math.sqrt(1000))


def test_the_whole_signal_keeps_its_largest_samples():
    events = CPMG * 40
    spins = OIL.magnet()
    view = figures.signal_view(events, spins)
    whole = next(t for t in view.figure.data if t.yaxis == "y2" and t.mode == "lines")
    assert len(whole.x) < 1600
    assert np.nanmax(whole.y) == pytest.approx(abs(run(CPMG, spins).signal).max())


def test_magnetisation_of_a_saturated_spin_recovers_and_the_balance_closes():
    events = EventList((Event(math.pi / 2, 0.0, tau=3.0, spoil=False),))
    view = figures.magnetisation_view(events, isochromats(T1=0.6, T2=0.3))
    mz = curve(view, panels.BLUE)
    t = np.asarray(mz.x)
    np.testing.assert_allclose(np.asarray(mz.y)[2:], 1 - np.exp(-t[2:] / 0.6), atol=1e-12)
    assert np.diff(t).max() < 0.02  # a long delay is a curve, not a line
    length = np.asarray(curve(view, panels.ORANGE).y)
    expected = np.hypot(np.exp(-t / 0.3), 1 - np.exp(-t / 0.6))
    np.testing.assert_allclose(length[2:], expected[2:], atol=1e-12)
    lost = curve(view, panels.ORANGE, "2")
    np.testing.assert_allclose(
        lost.y[1:], (1 - np.interp(lost.x[1:], t, length) ** 2) / 2, atol=1e-4
    )
    dots = next(t for t in view.figure.data if t.mode == "markers" and t.yaxis == "y2")
    np.testing.assert_allclose(dots.y, np.interp(dots.x, lost.x, lost.y), atol=1e-12)


def test_finite_pulses_have_no_balance():
    events = pulses.with_nutation(EventList((Event(math.pi / 2, tau=0.1),)), 5000.0)
    view = figures.magnetisation_view(events, isochromats(T1=0.6, T2=0.3))
    assert len(titles(view)) == 1


def test_robustness_of_two_pulses_is_that_of_the_closed_forms():
    b1 = np.array([0.8, 0.9, 1.0])
    view = figures.robustness_map(
        {"180": pulses.inversion(), "90 180 90": pulses.composite_90_180_90()}, [-1.0, 1.0], b1
    )
    plain, composite = (
        np.asarray(trace.z) for trace in view.figure.data if trace.type == "heatmap"
    )
    np.testing.assert_allclose(plain[:, 0], np.cos(b1 * math.pi), atol=1e-12)
    a = b1 * math.pi / 2
    closed = np.cos(a) ** 2 * np.cos(2 * a) - np.sin(a) ** 2
    np.testing.assert_allclose(composite[:, 1], closed, atol=1e-12)
    line = next(t for t in view.figure.data if t.type == "scatter" and t.mode == "lines")
    edge = 0.9 + 0.1 * (np.cos(0.9 * math.pi) + 0.98) / (np.cos(0.9 * math.pi) + 1)
    np.testing.assert_allclose(line.y, edge)  # between its neighbours, where Mz passes -0.98
    with pytest.raises(ValueError, match="pulses: got 4, allowed one to three"):
        figures.robustness_map(dict.fromkeys("abcd", pulses.inversion()), [0, 1], [0, 1])
    with pytest.raises(ValueError, match="b1: got shape"):
        figures.robustness_map({"a": pulses.inversion()}, [0, 1], [1, 0.5])


def test_speed_up_map_writes_its_numbers_and_leaves_gaps_empty():
    view = figures.speed_up_map([1, 2, 5], [10, 50], [[1, 2, 3], [4, np.nan, 6]], "a against b")
    (cells,) = view.figure.data
    assert [list(row) for row in cells.text] == [["1.00", "2.00", "3.00"], ["4.00", "", "6.00"]]
    assert list(view.figure.layout.xaxis.ticktext) == ["1", "2", "5"]
    with pytest.raises(ValueError, match=r"speed_up: got shape \(1, 3\), allowed \(2, 3\)"):
        figures.speed_up_map([1, 2, 5], [10, 50], [[1, 2, 3]], "")


def test_errors_and_their_bound_stand_on_one_axis():
    t = np.array([1.0, 100.0])
    view = figures.error_against_time({"CPMG": (t, 0.5 / np.sqrt(t))}, 42.0, 0.05)
    drawn = curve(view, panels.BLUE)
    np.testing.assert_allclose(drawn.y, [50.0, 5.0])
    bound = next(t for t in view.figure.data if t.mode == "lines" and t.line.dash == "dash")
    assert list(bound.x) == [42.0, 42.0]
    assert {" CPMG", "42 s: no sequence<br>reaches 5 % sooner"} <= set(words(view))
    low, high = view.figure.layout.xaxis.range
    assert low < 0 < 2 < high
    without = figures.error_against_time({"CPMG": (t, 0.5 / np.sqrt(t))}, 0.0, 0.05)
    assert words(without) == [" CPMG"]
    for bad in (([1.0], [0.0]), ([2.0, 1.0], [0.1, 0.1]), ([1.0], [0.1, 0.1])):
        with pytest.raises(ValueError, match=r"methods\['a'\]: got"):
            figures.error_against_time({"a": bad}, 1.0, 0.05)


def test_calibration_of_known_numbers():
    found = figures.calibration([1.1, 0.9, 1.2, 1.0], 0.1)
    assert found.rmse == pytest.approx(math.sqrt(0.06 / 4))
    assert found.bias == pytest.approx(0.05)
    assert found.spread == pytest.approx(math.sqrt(6 / 4))
    assert found.inside == 0.75
    half = stats.t.ppf(0.975, 3) * np.std([0.1, -0.1, 0.2, 0.0], ddof=1) / 2
    assert found.bias_interval == pytest.approx((0.05 - half, 0.05 + half))


def test_intervals_of_calibration_cover():
    rng = np.random.default_rng(5)
    runs = [figures.calibration(2 + 0.1 * rng.normal(size=30), 0.1, 2.0) for _ in range(600)]
    for interval, truth in (("rmse", 0.05), ("spread", 1.0), ("bias", 0.0)):
        ends = np.array([getattr(run, f"{interval}_interval") for run in runs])
        share = ((ends[:, 0] <= truth) & (truth <= ends[:, 1])).mean()
        assert 0.92 < share < 0.975, interval


def test_calibration_histogram_has_area_one_and_says_its_numbers():
    rng = np.random.default_rng(6)
    view = figures.calibration_view(1 + 0.05 * rng.standard_t(3, 500), 0.05)
    bars = next(trace for trace in view.figure.data if trace.type == "bar")
    assert float(np.sum(bars.y) * np.diff(bars.x).mean()) == pytest.approx(1.0)
    assert "RMSE" in titles(view)[0]
    for bad in ([1.0], [1.0, np.nan]):
        with pytest.raises(ValueError, match="estimates: got shape"):
            figures.calibration_view(bad, 0.1)
    with pytest.raises(ValueError, match="predicted_sd: got shape"):
        figures.calibration([1.0, 2.0], [0.1, 0.0])


def test_sections_of_a_list_go_into_a_report():
    views = figures.report_sections(CPMG * 3, OIL)
    assert [v.figure.layout.title.text for v in views] == [
        "<b>Sequence</b>", "<b>Signal</b>", "<b>Magnetisation</b>", "<b>Robustness</b>"
    ]  # fmt: skip
    page = Report("list")
    for view in views:
        page.plot(*view)
    assert page.html().count("data:image") >= 4
    deaf = figures.report_sections(pulses.deft(0.02, 0.5), OIL)
    assert len(deaf) == 2
    with pytest.raises(ValueError, match="events: got 0 events"):
        figures.report_sections(EventList(), OIL)


def test_pictures_warn_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figures.report_sections(CPMG, OIL, owners=["align"] * len(CPMG))


def test_phases_of_an_animation_do_not_overlap_and_pulses_close_together_share_a_text():
    close = [(0.0, 90.0, 0.0), (12.0, 180.0, 90.0), (24.0, 90.0, 180.0)]
    assert list(render._phases(close, 1000.0)) == [(0.0, 180.0, "0°, 90°, 180°", "left")]
    far = [(0.0, 90.0, 0.0), (500.0, -180.0, 90.0)]
    assert list(render._phases(far, 1000.0)) == [
        (0.0, 90.0, "0°", "center"), (500.0, 180.0, "90°", "center")
    ]  # fmt: skip
    rng = np.random.default_rng(2)
    for _ in range(50):
        times = np.sort(rng.uniform(0, 1000, 10)).tolist()
        texts = render._phases([(t, 90.0, 270.0) for t in times], 1000.0)
        end = -math.inf
        for time, _, words, side in texts:
            width = render.LETTER * len(words) * 1000.0
            begin = time - width / 2 if side == "center" else time
            assert begin >= end
            end = begin + width
