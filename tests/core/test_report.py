import base64
import hashlib
import html.parser
import json
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import plotly.graph_objects as go
import pytest

from palestra import figures
from palestra.claims import Claim, Quantity
from palestra.report import ANIMATION_BYTES, Report

HOSTILE = "</script><script>document.title='run'</script><img src=x onerror=alert(1)>&\"'"


class Page(html.parser.HTMLParser):
    """What a browser without scripts sees: elements with attributes, text and `<data>` values."""

    VOID = {"meta", "link", "img", "input", "br"}

    def __init__(self, text):
        super().__init__()
        self.elements, self.values, self.text, self.open = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []  # every element is closed

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.elements.append((tag, attributes))
        if tag == "data":
            self.values.append(float(attributes["value"]))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"script", "style"} & set(self.open):
            self.text.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


def moving_square(count=12, size=(48, 64)):
    frames = np.zeros((count, *size, 3), dtype=np.uint8)
    for k in range(count):
        frames[k, 8:16, 4 * k : 4 * k + 8] = (0, 114, 178)
    return frames


@pytest.fixture(scope="module")
def full_page():
    report = Report("nmr-relax " + HOSTILE, subtitle=HOSTILE)
    report.headline([("yours", Quantity(1.192, (1.183, 1.201), "s"), HOSTILE), ("bound", 0.98)])
    report.section(HOSTILE)
    report.text("first\n\n" + HOSTILE)
    report.table(
        HOSTILE, ["policy", "time / s"], [[HOSTILE, 1.18345678], ["waiting", None]], note=HOSTILE
    )
    report.claims([Claim(HOSTILE, 1.192, 1.35, "<=", unit=HOSTILE, source=HOSTILE)])
    curve = (np.arange(3), np.array([0.5, 1.5, 2.5]))
    report.plot(HOSTILE, *figures.learning_curve({HOSTILE: [curve]}, references={HOSTILE: 2.0}))
    report.animation(HOSTILE, moving_square(), fps=10)
    report.facts({HOSTILE: HOSTILE, "libraries": {"numpy": "2.4"}, "seeds": [1, 2]})
    return report.html()


def test_given_markup_appears_as_text_and_makes_no_element(full_page):
    page = Page(full_page)
    assert len(page.all("script")) == 5  # first paint, two data blocks, plotly, report.js
    assert all("onerror" not in attributes for _, attributes in page.elements)
    text = "".join(page.text)
    assert text.count("<script>document.title='run'</script>") >= 12


def test_text_of_a_figure_cannot_end_the_data_block_it_stands_in():
    report = Report("t")
    figure = go.Figure(go.Scatter(y=[1.0], name=HOSTILE), layout={"title": {"text": "<!--"}})
    report.plot("p", figure)
    blocks = re.findall(r"<script type=application/json>(.*?)</script>", report.html())
    assert len(blocks) == 1
    assert not set("<>&") & set(blocks[0])
    content = json.loads(blocks[0])
    assert content["data"][0]["name"] == HOSTILE
    assert content["layout"]["title"]["text"] == "<!--"


def test_no_element_fetches_anything(full_page):
    page = Page(full_page)
    assert not {"link", "iframe", "object", "embed", "base", "form", "video", "audio", "source"} & {
        tag for tag, _ in page.elements
    }
    assert all("src" not in attributes for attributes in page.all("script"))
    assert page.all("img")
    assert all(attributes["src"].startswith("data:image/") for attributes in page.all("img"))
    style = re.search(r"<style>(.*?)</style>", full_page, re.DOTALL).group(1)
    assert "url(" not in style
    assert "@import" not in style


def test_policy_blocks_requests_and_names_exactly_the_scripts_of_the_page(full_page):
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', full_page)[1]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data: blob:"
    assert rules["form-action"] == rules["base-uri"] == "'none'"
    scripts = re.findall(r"<script>(.*?)</script>", full_page, re.DOTALL)
    digests = [hashlib.sha256(script.encode()).digest() for script in scripts]
    hashes = [f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests]
    assert rules["script-src"].split() == hashes
    assert full_page.index("Content-Security-Policy") < full_page.index("<script")


def test_numbers_of_the_page_equal_the_given_numbers_to_the_last_bit():
    given = np.random.default_rng(0).lognormal(0, 8, 60)
    report = Report("numbers")
    report.headline([("a", Quantity(given[0], (0.0, 1e300))), ("b", given[1])])
    report.table("t", ["row", *"abcd"], [[str(k), *given[4 * k : 4 * k + 4]] for k in range(15)])
    assert Page(report.html()).values == [*given[:2], *given]


@pytest.mark.parametrize(
    ("column", "printed"),
    [
        ([2.75, 1.18345, 0.9912], ["2.750", "1.183", "0.991"]),
        ([0.5, 0.25], ["0.50", "0.25"]),
        ([1, 12345], ["1", "12\u202f345"]),
        ([np.float32(0.5), np.float32(2.0)], ["0.5", "2.0"]),
        ([1e-7, 1234.7], ["1.000e−7", "1235"]),
        ([True, False], ["yes", "no"]),
        ([float("nan"), -1.0], ["NaN", "−1"]),
        ([Quantity(-1.23456, (-1.3, -1.2), "m")], ["−1.23\u00a0m[−1.30,\u00a0−1.20]"]),
        ([None, 1.5], ["—", "1.5"]),
    ],
)
def test_columns_are_printed_with_common_decimals(column, printed):
    report = Report("t")
    report.table("caption", ["row", "value"], [["r", cell] for cell in column])
    cells = re.findall(r"<td[^>]*>(.*?)</td>", report.html())
    texts = [re.sub(r"<[^>]*>", "", cell).replace(" [", "[") for cell in cells]
    assert texts == printed


def test_table_names_its_rows_columns_and_caption(full_page):
    page = Page(full_page)
    scopes = [attributes["scope"] for attributes in page.all("th")]
    assert scopes.count("col") == 2 + 5
    assert scopes.count("row") == 2 + 1
    names = {attributes.get("id") for attributes in page.all("caption")}
    regions = [a for a in page.all("div") if a.get("role") == "region"]
    assert {a["aria-labelledby"] for a in regions} == names
    assert all(a["tabindex"] == "0" for a in regions)  # scrolls by keyboard
    assert len(page.all("h1")) == len(page.all("main")) == 1
    assert len(page.all("figcaption")) == len(page.all("figure")) == 2


def test_without_scripts_plots_and_episodes_are_still_pictures(full_page):
    plot, player = re.findall(r"<figure class=(?:plot|player).*?</figure>", full_page, re.DOTALL)
    for figure in (plot, player):
        live = re.search(r"<div class=(canvas|stage)[^>]* hidden>", figure)
        assert live is not None
    assert plot.count('<img class=static src="data:image/png;base64,') == 1
    assert player.count("<img ") == 3  # first, middle and last frame


def test_frames_are_decoded_to_what_was_given():
    from io import BytesIO

    from PIL import Image

    frames = moving_square(4)
    report = Report("t")
    report.animation("a", [*frames, *frames], fps=10)
    block = re.search(r"<script type=application/json>(.*?)</script>", report.html())[1]
    content = json.loads(block)
    assert content["fps"] == 10
    assert content["order"] == [0, 1, 2, 3] * 2  # equal frames are stored once
    for frame, uri in zip(frames, content["pictures"], strict=True):
        picture = Image.open(BytesIO(base64.b64decode(uri.split(",")[1])))
        np.testing.assert_array_equal(np.asarray(picture.convert("RGB")), frame)


def test_too_large_an_animation_shows_fewer_frames_and_says_so():
    noise = np.random.default_rng(0).integers(0, 256, (16, 500, 700, 3), dtype=np.uint8)
    report = Report("t")
    report.animation("noise", noise, fps=10)
    page = report.html()
    stride = {"second": 2, "third": 3}.get(m := re.search(r"every (\w+) frame is shown", page)[1])
    stride = stride or int(m.removesuffix("th"))
    content = json.loads(re.search(r"application/json>(.*?)</script>", page)[1])
    assert content["fps"] == pytest.approx(10 / stride)  # the episode takes as long as before
    assert len(content["order"]) == -(-16 // stride)
    assert sum(map(len, content["pictures"])) <= ANIMATION_BYTES


@pytest.mark.parametrize(
    ("frames", "fps", "message"),
    [
        ([], 10, "at least one frame"),
        (moving_square(), 0, "fps = 0"),
        (moving_square(), float("nan"), "fps = nan"),
        (moving_square().astype(float), 10, r"frames\[0\] is float64"),
        ([moving_square()[0], np.zeros((2, 2, 3), np.uint8)], 10, r"frames\[1\] has shape"),
    ],
)
def test_animation_refuses(frames, fps, message):
    with pytest.raises(ValueError, match=message):
        Report("t").animation("a", frames, fps)


def test_table_refuses_a_row_of_another_length():
    with pytest.raises(ValueError, match=r"rows\[1\] has 1 cells: must be 2"):
        Report("t").table("c", ["a", "b"], [["x", 1], ["y"]])


def test_page_without_plots_does_not_carry_the_library():
    report = Report("t")
    report.text("words")
    assert len(report.html()) < 30_000


def test_library_is_inlined_once_and_the_page_stays_below_15_megabytes():
    report = Report("t")
    for _ in range(4):
        report.plot("p", *figures.cumulative({"a": np.arange(2000.0)}, x_label="x"))
    assert report.html().count("plotly.js v") == 1
    assert len(report.html()) < 6_000_000


def test_write_replaces_the_file_as_a_whole(tmp_path):
    target = tmp_path / "report.html"
    target.write_text("old")
    report = Report("t — ü")
    assert report.write(target) == target
    assert target.read_text(encoding="utf-8") == report.html()
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("package", ["plotly", "matplotlib"])
def test_missing_package_names_the_extra(monkeypatch, package):
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=r'pip install "palestra\[report\]"'):
        figures.cumulative({"a": [1.0]}, x_label="x")


# --- in a browser ------------------------------------------------------------------------------

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)

# The page is left as it is, policy included; another page looks at it from outside.
OBSERVER = """<!doctype html><iframe id=page src="report.html" style="width:WIDTHpx;height:900px">
</iframe><pre id=seen></pre><script>
const page = document.getElementById("page");
const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
page.onload = async () => {
  const view = page.contentDocument;
  const within = page.contentWindow;
  for (let k = 0; k < 100 && view.querySelectorAll("figure.drawn").length < 2; k++) await wait(50);
  const pixels = () => view.querySelector("canvas").toDataURL();
  const button = view.querySelector("button");
  const output = view.querySelector("output");
  const seen = { title: view.title, theme: within.getComputedStyle(view.body).backgroundColor };
  seen.table = view.querySelector("table").getBoundingClientRect().height;
  seen.curves = view.querySelectorAll(".plot .scatterlayer .trace").length;
  seen.stills = [...view.querySelectorAll(".static")].filter((e) => e.checkVisibility()).length;
  seen.overflow = view.documentElement.scrollWidth - view.documentElement.clientWidth;
  seen.first = [output.textContent, button.textContent];
  const before = pixels();
  button.click();
  seen.playing = button.textContent;
  await wait(350);
  button.click();
  seen.paused = [output.textContent, button.textContent];
  const between = pixels();
  seen.moved = between !== before;
  await wait(300);
  seen.stays = pixels() === between;
  const slider = view.querySelector("input");
  slider.value = 11;
  slider.dispatchEvent(new within.Event("input"));
  seen.scrubbed = output.textContent;
  button.click();
  await wait(1600);
  seen.ended = [output.textContent, button.textContent];
  seen.requests = within.performance.getEntriesByType("resource").map((entry) => entry.name)
    .filter((name) => !name.startsWith("data:") && !name.startsWith("blob:"));
  document.getElementById("seen").textContent = JSON.stringify(seen);
};
</script>"""


def look(folder, page, *, width=1400, flags=()):
    """What the observer saw, and the messages of the console."""
    if CHROMIUM is None:
        reason = "no chromium on PATH; Debian and Ubuntu: apt-get install chromium"
        if os.environ.get("PALESTRA_REQUIRE_CHROMIUM"):
            pytest.fail(reason)
        pytest.skip(reason)
    (folder / "report.html").write_text(page, encoding="utf-8")
    (folder / "observer.html").write_text(OBSERVER.replace("WIDTH", str(width)))
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        "--host-resolver-rules=MAP * ~NOTFOUND", "--allow-file-access-from-files",
        f"--user-data-dir={folder / 'profile'}", "--enable-logging=stderr",
        "--virtual-time-budget=15000", *flags, "--dump-dom",
        (folder / "observer.html").as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    seen = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)[1]
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return json.loads(html.unescape(seen)), console


@pytest.mark.parametrize("width", [390, 1400])
def test_browser_draws_the_plot_and_plays_the_episode_and_requests_nothing(
    tmp_path, full_page, width
):
    seen, console = look(tmp_path, full_page, width=width)
    assert console == []
    assert seen["requests"] == []
    assert seen["title"] == "nmr-relax " + HOSTILE  # the script in the title did not run
    assert seen["table"] > 50
    assert seen["curves"] == 1
    assert seen["stills"] == 0
    assert seen["overflow"] <= 0  # wide tables scroll inside their own box
    assert seen["first"] == ["1 / 12", "Play"]
    assert seen["playing"] == "Pause"
    assert seen["paused"][0] == "4 / 12"  # 350 ms at 10 frames a second, in virtual time
    assert seen["paused"][1] == "Play"
    assert seen["moved"]
    assert seen["stays"]
    assert seen["scrubbed"] == "12 / 12"
    assert seen["ended"] == ["12 / 12", "Play"]


def test_browser_follows_the_dark_theme(tmp_path, full_page):
    seen, _ = look(tmp_path, full_page, flags=["--blink-settings=preferredColorScheme=0"])
    assert seen["theme"] == "rgb(21, 24, 28)"


def test_browser_refuses_a_script_that_the_page_does_not_name(tmp_path, full_page):
    """Even if an escape were missing, the policy would hold: the negative control."""
    injected = full_page.replace("</main>", "<script>document.title = 'run'</script></main>")
    seen, console = look(tmp_path, injected)
    assert seen["title"] != "run"
    assert any("Content Security Policy" in line for line in console)


def test_browser_shows_the_stills_where_the_library_cannot_run(tmp_path, full_page):
    broken = full_page.replace("plotly.js v", "plotly.js w", 1)  # its hash no longer fits
    seen, console = look(tmp_path, broken)
    assert seen["curves"] == 0
    assert seen["stills"] == 1
    assert console
