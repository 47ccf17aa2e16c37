from io import BytesIO

import numpy as np
import plotly.graph_objects as go
import pytest
from PIL import Image
from scipy import stats

from palestra import figures, still
from palestra.claims import Quantity

RNG = np.random.default_rng(7)


def pixels(png):
    return np.asarray(Image.open(BytesIO(png)).convert("RGB")).astype(int)


def shows(png, colour):
    target = [int(colour[k : k + 2], 16) for k in (1, 3, 5)]
    return int((np.abs(pixels(png) - target).max(axis=2) < 12).sum())


def test_median_curve_of_three_runs_on_their_common_steps():
    steps = np.array([0.0, 10.0, 20.0])
    runs = [(steps, steps * k) for k in (1.0, 2.0, 6.0)] + [([5.0, 15.0], [0.0, 0.0])]
    figure, _ = figures.learning_curve({"a": runs[:3], "b": runs[:2]})
    names = [trace.name for trace in figure.data if trace.showlegend is not False]
    assert names == ["a, median of 3 runs", "b"]  # two runs have no median line
    np.testing.assert_array_equal(figure.data[3].y, 2.0 * steps)
    figure, _ = figures.learning_curve({"a": [*runs[:3], runs[3]]})
    np.testing.assert_array_equal(figure.data[4].x, [5.0, 10.0, 15.0])
    np.testing.assert_array_equal(figure.data[4].y, [7.5, 15.0, 22.5])  # mean of 5k and 10k


def test_every_run_is_a_line_of_its_own_and_reference_lines_are_inside():
    runs = {"a": [(np.arange(50), np.linspace(0, 1, 50)) for _ in range(5)]}
    figure, _ = figures.learning_curve(runs, references={"best": 3.0})
    assert len(figure.data) == 6
    low, high = figure.layout.yaxis.range
    assert low < 0 < 3 < high


def test_distributions_draw_every_value_and_the_quartiles():
    values = RNG.gamma(3.0, size=300)
    figure, _ = figures.distributions({"a": values}, x_label="x")
    outline, points, quartiles, median = figure.data
    np.testing.assert_array_equal(points.x, values)
    np.testing.assert_array_equal(quartiles.x, np.quantile(values, [0.25, 0.75]))
    assert list(median.x) == [np.median(values)]
    assert min(outline.x) == values.min()  # no density where nothing was measured
    assert max(outline.x) == values.max()


def test_density_agrees_with_scipy_at_the_same_bandwidth():
    values = RNG.normal(size=200)
    grid, density = figures._density(values)
    spread = min(values.std(ddof=1), stats.iqr(values) / 1.34)
    kernel = stats.gaussian_kde(values, bw_method=0.9 * spread * 200**-0.2 / values.std(ddof=1))
    np.testing.assert_allclose(density, kernel(grid), rtol=1e-10)
    many = np.tile(values, 40)  # above 5000 values they are binned first
    binned = figures._density(many)[1]
    centres = stats.gaussian_kde(many, bw_method=0.9 * spread * 8000**-0.2 / many.std(ddof=1))(grid)
    np.testing.assert_allclose(binned, centres, rtol=0.05, atol=0.02)


def test_few_values_have_no_density():
    figure, _ = figures.distributions({"a": np.arange(19.0)}, x_label="x")
    assert [trace.fill for trace in figure.data] == [None] * 3


def test_many_values_are_thinned_evenly_in_rank_and_the_picture_says_so():
    values = RNG.normal(size=50_000)
    figure, _ = figures.distributions({"a": values}, x_label="x")
    shown = figure.data[1].x
    assert len(shown) == figures.POINTS_SHOWN
    assert (shown[0], shown[-1]) == (values.min(), values.max())
    assert stats.ks_2samp(shown, values).statistic < 1e-3
    assert figure.layout.annotations[0].text == "<b>a, n = 50000 (2000 drawn)</b>"


def test_cumulative_is_the_empirical_distribution_function():
    values = RNG.integers(0, 6, 40).astype(float)
    figure, _ = figures.cumulative({"a": values}, x_label="x")
    expected = stats.ecdf(values).cdf
    np.testing.assert_array_equal(figure.data[0].x[1:], expected.quantiles)
    np.testing.assert_allclose(figure.data[0].y[1:], expected.probabilities, rtol=1e-15)
    assert figure.data[0].line.shape == "hv"


def test_paired_differences_show_pairs_mean_interval_and_zero():
    difference = RNG.normal(0.2, 1.0, 30)
    figure, _ = figures.paired_differences(
        {"a - b": difference, "a - c": difference},
        x_label="x",
        means={"a - b": Quantity(0.2, (0.1, 0.5))},
    )
    pairs, mean, others = figure.data
    np.testing.assert_array_equal(pairs.x, difference)
    np.testing.assert_array_equal(others.x, difference)
    assert mean.error_x.array[0] == pytest.approx(0.3)
    assert mean.error_x.arrayminus[0] == pytest.approx(0.1)
    assert figure.layout.shapes[0].x0 == 0.0


def test_names_are_text_not_markup():
    name = "<b>a</b> & <script>"
    figure, _ = figures.cumulative({name: [1.0, 2.0]}, x_label=name)
    escaped = "&lt;b&gt;a&lt;/b&gt; &amp; &lt;script&gt;"
    assert figure.data[0].name == f"{escaped}, n = 2"
    assert figure.layout.xaxis.title.text == escaped
    assert still.plain(figure.data[0].name) == f"{name}, n = 2"
    assert still.plain("costs $5 and $6") == r"costs \$5 and \$6"  # not mathematics


def test_still_picture_draws_each_kind_of_trace():
    figure = go.Figure()
    figure.add_bar(x=["a", "b"], y=[1, 2], marker_color="#009E73")
    figure.add_scatter(x=["a", "b"], y=[2, 1], line={"color": "#0072B2", "width": 4})
    figure.add_hline(y=1.5, line_color="#D55E00", line_width=4)
    figure.add_scatter(
        x=["a"], y=[2.5], mode="markers", marker={"color": "#CC79A7", "size": 20}, error_y={
            "type": "data", "array": [0.3], "color": "#E69F00", "thickness": 5}
    )  # fmt: skip
    png = figures.static_picture(figure)
    for colour in ("#009E73", "#0072B2", "#D55E00", "#CC79A7", "#E69F00"):
        assert shows(png, colour) > 100
    assert shows(png, "#56B4E9") == 0


def test_still_picture_draws_a_base64_figure_and_log_axes():
    figure = go.Figure(go.Scatter(x=np.arange(1.0, 30.0), y=np.arange(1.0, 30.0) ** 3))
    figure.update_yaxes(type="log", range=[0, 5])
    straight = figures.static_picture(figure)
    assert shows(straight, figures.PALETTE[0]) > 300


def test_still_picture_is_the_same_bytes_each_time():
    figure, png = figures.cumulative({"a": np.arange(9.0)}, x_label="x")
    assert figures.static_picture(figure) == png


def test_still_picture_refuses_what_it_cannot_draw():
    with pytest.raises(ValueError, match=r"figure.data\[0\] is a pie trace.*give fallback_png"):
        figures.static_picture(go.Figure(go.Pie(values=[1, 2])))


def test_still_picture_of_several_panels_puts_each_trace_where_its_axes_are():
    figure = go.Figure(go.Scatter(x=[0, 1], y=[0, 1], line={"color": "#0072B2", "width": 6}))
    figure.add_scatter(
        x=[0, 1], y=[1, 1], xaxis="x2", yaxis="y2", line={"color": "#D55E00", "width": 6}
    )
    figure.update_layout(
        yaxis={"domain": [0.6, 1.0]}, xaxis2={"anchor": "y2"}, yaxis2={"domain": [0.0, 0.4]}
    )
    picture = pixels(figures.static_picture(figure))
    rows = {}
    for colour in ("#0072B2", "#D55E00"):
        target = [int(colour[k : k + 2], 16) for k in (1, 3, 5)]
        rows[colour] = np.flatnonzero((np.abs(picture - target).max(axis=2) < 12).any(axis=1))
    assert rows["#0072B2"].max() < 0.55 * len(picture) < rows["#D55E00"].min()


def test_still_picture_fills_every_cell_and_every_outline_with_its_own_colour():
    cells = go.Heatmap(z=[[0.0, 1.0]], colorscale=[[0, "#0072B2"], [1, "#D55E00"]], showscale=False)
    png = figures.static_picture(go.Figure(cells))
    assert shows(png, "#0072B2") == pytest.approx(shows(png, "#D55E00"), rel=0.01)
    assert shows(png, "#0072B2") > 50_000
    square, nothing = [0.0, 1.0, 1.0, 0.0], [np.nan]
    outlines = go.Scatter(
        x=[*square, *nothing, *(2 + np.array(square))],
        y=[0.0, 0.0, 1.0, 1.0, np.nan, 0.0, 0.0, 1.0, 1.0],
        mode="lines", line={"width": 0}, fill="toself", fillcolor="#009E73",
    )  # fmt: skip
    filled = shows(figures.static_picture(go.Figure(outlines)), "#009E73")
    figure = go.Figure(outlines)
    figure.data[0].x, figure.data[0].y = square, [0.0, 0.0, 1.0, 1.0]
    figure.update_xaxes(range=[-0.15, 3.15])
    assert filled == pytest.approx(2 * shows(figures.static_picture(figure), "#009E73"), rel=0.02)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: figures.learning_curve({"a": []}), "at least one run"),
        (lambda: figures.learning_curve({"a": [([1, 2], [1])]}), r"runs\['a'\]\[0\]"),
        (lambda: figures.learning_curve({"a": [([2, 1], [1, 1])]}), "steps must increase"),
        (lambda: figures.distributions({}, x_label=""), "no group"),
        (lambda: figures.distributions({"a": [[1.0]]}, x_label=""), r"shape \(1, 1\)"),
        (lambda: figures.cumulative({"a": [1.0, np.nan]}, x_label=""), "1 values are not finite"),
        (
            lambda: figures.paired_differences(
                {"a": [1.0]}, x_label="", means={"b": Quantity(1.0)}
            ),
            r"means\['b'\]: allowed are 'a'",
        ),
    ],
)
def test_figures_refuse(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_scores_stand_over_their_values_with_their_intervals_and_the_best_is_marked():
    scores = [Quantity(1.0, (0.5, 2.0)), Quantity(3.0), Quantity(2.0, (1.0, 3.0))]
    figure, png = figures.score_by_value(
        [1e-4, 1e-2, 1e-3], scores, x_label="rate", y_label="return", log=True, best=1
    )
    others, best = figure.data
    assert (list(others.x), list(others.y)) == ([1e-4, 1e-3], [1.0, 2.0])
    assert list(others.error_y.array) == [1.0, 1.0]
    assert list(others.error_y.arrayminus) == [0.5, 1.0]
    assert (list(best.x), list(best.y), best.name) == ([1e-2], [3.0], "best")
    assert figure.layout.xaxis.type == "log"
    assert list(figure.layout.xaxis.tickvals) == [
        1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2,
    ]  # fmt: skip
    assert figures._log_ticks(3e-5, 0.3) == [1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0]
    assert shows(png, figures.PALETTE[0])
    assert shows(png, figures.PALETTE[1])


def test_values_that_are_no_numbers_have_places_of_their_own():
    scores = [Quantity(float(k)) for k in range(4)]
    figure, _ = figures.score_by_value(
        [[8], [4, 4], [8], True], scores, x_label="net_arch", y_label="return"
    )
    (points,) = figure.data
    assert list(points.x) == [0, 1, 0, 2]
    assert list(figure.layout.xaxis.ticktext) == ["[8]", "[4, 4]", "true"]
    with pytest.raises(ValueError, match="have 1 and 4 entries"):
        figures.score_by_value([1], scores, x_label="x", y_label="y")


@pytest.mark.parametrize("name", ["a", "ppo (learning_rate 0.0003)", "long " * 12])
def test_a_legend_stays_inside_the_picture(name, monkeypatch):
    """Six names, however long they are, end left of the picture's right edge."""
    import matplotlib.figure

    drawn = []
    save = matplotlib.figure.Figure.savefig

    def kept(self, *arguments, **options):
        save(self, *arguments, **options)
        drawn.append(self)

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", kept)
    figures.learning_curve({f"{name} {k}": [([0, 1], [0.0, k])] for k in range(6)})
    (figure,) = drawn
    (legend,) = figure.legends
    assert len(legend.get_texts()) == 6
    assert legend.get_window_extent().x1 <= figure.bbox.x1
    assert figure.axes[0].get_window_extent().height > 100
