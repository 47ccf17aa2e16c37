"""The pages as people see them: in headless Chromium, from the disk, with no network.

Needs Chromium and its driver (Debian: `apt-get install chromium chromium-driver`). Without them
these tests are skipped, unless `PALESTRA_BROWSER=required`, as in CI.
"""

from __future__ import annotations

import json
import os
import shutil
import time

import numpy as np
import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from palestra.claims import Claim, Quantity
from palestra.experiments.index_page import write_index
from palestra.experiments.pages import write_page
from palestra.figures import distributions, learning_curve
from palestra.report import Report
from palestra.rollout import compare, evaluate

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
DRIVER = shutil.which("chromedriver")
EVIL = (
    "</script><script>document.title='stolen'</script><img src=x onerror=document.title='stolen'>"
)

if not (CHROMIUM and DRIVER):
    wanted = "needs Chromium and its driver: apt-get install chromium chromium-driver"
    if os.environ.get("PALESTRA_BROWSER") == "required":
        raise RuntimeError(wanted)
    pytest.skip(wanted, allow_module_level=True)


def start(folder, *, scripts=True, dark=False, width=1400, height=900):
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in (
        "headless=new", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run",
        "disable-background-networking", "disable-component-update", "disable-sync",
        "hide-scrollbars", "force-device-scale-factor=1",
        f"user-data-dir={folder}", f"window-size={width},{height}",
        # nothing is reachable: neither a name nor an address
        "host-resolver-rules=MAP * ~NOTFOUND", "proxy-server=127.0.0.1:1",
    ):  # fmt: skip
        options.add_argument(f"--{argument}")
    if dark:
        options.add_argument("--blink-settings=preferredColorScheme=0")
    if not scripts:
        setting = {"profile.managed_default_content_settings.javascript": 2}
        options.add_experimental_option("prefs", setting)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options, webdriver.ChromeService(DRIVER))


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    driver = start(tmp_path_factory.mktemp("profile"))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """One page of every kind of part, one of a comparison and an evaluation, and the index."""
    root = tmp_path_factory.mktemp("pages")
    page = Report(f"all parts {EVIL}", subtitle=EVIL)
    page.headline([(EVIL, Quantity(1.19, (1.17, 1.21), "s")), ("bound", 0.98)])
    page.text(EVIL)
    page.table(EVIL, ("what", EVIL), [[EVIL, Quantity(2.0, (1.0, 3.0))], ["b", 0.1234567]])
    page.claims([Claim("faster", 1.0, 2.0, "<=", None, "s")])
    page.plot(EVIL, *learning_curve({EVIL: [([0, 1, 2], [0.0, 1.0, 4.0])]}))
    spread = {"a": np.arange(30.0), EVIL: np.arange(30.0) ** 2}
    page.plot("Spread", *distributions(spread, x_label=EVIL))
    frames = []
    for k in range(12):
        frame = np.full((60, 80, 3), 255, np.uint8)
        frame[:, : 6 * k + 1] = (20 * k, 0, 0)
        frames.append(frame)
    page.animation(EVIL, frames, fps=30)
    page.facts({EVIL: EVIL})
    page.write(root / "parts.html")
    played = {"episodes": 64, "seed": 7}
    compare({"wait": "wait", EVIL[:60]: "deft"}, "NMRRelax", run=root / "runs" / "both", **played)
    evaluate("deft", "NMRRelax", run=root / "runs" / "deft", **played)
    write_page(root / "runs" / "both")
    write_page(root / "runs" / "deft")
    (root / "runs" / "broken").mkdir()
    (root / "runs" / "broken" / "run.json").write_text(EVIL)
    write_index(root / "runs")
    return root


NAMES = ["parts.html", "runs/both/report.html", "runs/deft/report.html", "runs/index.html"]


def visit(driver, path):
    driver.get_log("browser"), driver.get_log("performance")
    driver.get(path.as_uri())
    until = time.monotonic() + 20
    while driver.execute_script("return document.documentElement.classList.contains('scripted')"):
        assert time.monotonic() < until, "the page is never drawn"
        time.sleep(0.05)


def requests(driver):
    for entry in driver.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            yield message["params"]["request"]["url"]


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_drawn_without_errors_and_asks_nobody(browser, pages, name):
    visit(browser, pages / name)
    assert browser.get_log("browser") == []
    here = (pages / name).as_uri()
    asked = [url for url in requests(browser) if not url.startswith(("data:", "blob:"))]
    assert asked == [here]
    assert browser.title != "stolen"
    for table in browser.find_elements(By.TAG_NAME, "table"):
        assert table.is_displayed()
        assert table.size["height"] > 20
    for plot in browser.find_elements(By.CSS_SELECTOR, "figure.plot"):
        assert plot.find_elements(By.CSS_SELECTOR, "svg .scatterlayer .trace")
        assert plot.find_element(By.CSS_SELECTOR, "svg.main-svg").size["height"] > 100


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [390, 1400])
def test_nothing_overflows_the_page(browser, pages, name, width):
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        visit(browser, pages / name)
        widths = "return [document.documentElement.scrollWidth, innerWidth]"
        needed, there = browser.execute_script(widths)
        assert there == width
        assert needed <= there
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_numbers_of_a_page_are_those_of_json(browser, pages, monkeypatch, capsys):
    from palestra.experiments.cli import main

    monkeypatch.chdir(pages)
    assert main(["evaluate", "nmr-relax", "--policy", "deft", "--episodes", "64", "--seed", "7",
                 "--out", "runs/deft", "--quiet", "--json"]) == 0  # fmt: skip
    means = json.loads(capsys.readouterr().out)["policies"]["deft"]["means"]
    visit(browser, pages / "runs/deft/report.html")
    rows = browser.find_elements(By.CSS_SELECTOR, "table tbody tr")
    shown = {
        row.find_element(By.TAG_NAME, "th").text: float(
            row.find_element(By.TAG_NAME, "data").get_attribute("value")
        )
        for row in rows
    }
    assert shown == {name: mean["estimate"] for name, mean in means.items()}


# --- the player -----------------------------------------------------------------------------------


def pixel(driver):
    """How many columns of the canvas are not white: the number of the frame tells."""
    return driver.execute_script(
        "const c = document.querySelector('.stage canvas');"
        "const d = c.getContext('2d').getImageData(0, 30, c.width, 1).data;"
        "let n = 0; for (let i = 0; i < d.length; i += 4) n += d[i + 1] < 128; return n;"
    )


def frame_of(columns):
    return round((columns - 1) / 6)


def test_the_player_plays_pauses_and_scrubs(browser, pages):
    visit(browser, pages / "parts.html")
    button = browser.find_element(By.CSS_SELECTOR, ".player button")
    slider = browser.find_element(By.CSS_SELECTOR, ".player input")
    output = browser.find_element(By.CSS_SELECTOR, ".player output")
    assert (frame_of(pixel(browser)), output.text, button.text) == (0, "1 / 12", "Play")
    button.click()
    assert button.text == "Pause"
    until = time.monotonic() + 10
    while output.text != "12 / 12":
        assert time.monotonic() < until
    assert frame_of(pixel(browser)) == 11
    assert button.text == "Play"  # at its end
    set_to = "arguments[0].value = 5; arguments[0].dispatchEvent(new Event('input'))"
    browser.execute_script(set_to, slider)
    assert (frame_of(pixel(browser)), output.text) == (5, "6 / 12")


def test_the_player_is_played_by_keyboard(browser, pages):
    visit(browser, pages / "parts.html")
    button = browser.find_element(By.CSS_SELECTOR, ".player button")
    slider = browser.find_element(By.CSS_SELECTOR, ".player input")
    output = browser.find_element(By.CSS_SELECTOR, ".player output")
    for _ in range(60):
        browser.switch_to.active_element.send_keys(Keys.TAB)
        if browser.switch_to.active_element == button:
            break
    else:
        pytest.fail("the tabulator never reaches the button")
    ring = "return getComputedStyle(arguments[0]).outlineStyle"
    assert browser.execute_script(ring, button) == "solid"  # where one is, is seen
    button.send_keys(Keys.TAB)
    assert browser.switch_to.active_element == slider
    slider.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert (frame_of(pixel(browser)), output.text) == (2, "3 / 12")
    slider.send_keys(Keys.END)
    assert output.text == "12 / 12"
    button.send_keys(Keys.SPACE)  # plays from the start again, and is stopped
    button.send_keys(Keys.SPACE)
    stopped = output.text
    time.sleep(0.2)
    assert output.text == stopped


# --- the index ------------------------------------------------------------------------------------


def names(driver):
    rows = driver.find_elements(By.CSS_SELECTOR, "table.catalogue tbody tr")
    return [row.find_element(By.TAG_NAME, "th").text for row in rows if row.is_displayed()]


def test_the_index_is_filtered_and_sorted(browser, pages):
    visit(browser, pages / "runs/index.html")
    everything = names(browser)
    assert len(everything) == 4
    field = browser.find_element(By.CSS_SELECTOR, ".filter input")
    field.send_keys("wait FINISHED")
    assert names(browser) == ["both/wait"]
    assert browser.find_element(By.CSS_SELECTOR, ".filter output").text == "1 of 4"
    field.send_keys(Keys.CONTROL, "a", Keys.BACKSPACE)
    assert names(browser) == everything
    heads = browser.find_elements(By.CSS_SELECTOR, "table.catalogue thead th")
    score = next(head for head in heads if "score" in head.text)
    score.find_element(By.TAG_NAME, "button").click()
    assert score.get_attribute("aria-sort") == "ascending"
    up = names(browser)
    assert up[0] == "both/wait"  # its return is 0
    assert up[-1] == "broken"  # without a score: last
    score.find_element(By.TAG_NAME, "button").send_keys(Keys.ENTER)
    assert score.get_attribute("aria-sort") == "descending"
    assert names(browser)[-2:] == ["both/wait", "broken"]
    browser.find_element(By.LINK_TEXT, "deft").click()
    assert browser.current_url == (pages / "runs/deft/report.html").as_uri()


# --- without scripts, in the dark -----------------------------------------------------------------


def test_without_scripts_tables_and_pictures_stay(pages, tmp_path):
    driver = start(tmp_path / "profile", scripts=False)
    try:
        for name in NAMES:
            driver.get((pages / name).as_uri())
            assert driver.find_element(By.TAG_NAME, "table").is_displayed()
            stills = driver.find_elements(By.CSS_SELECTOR, "figure .static img, figure img.static")
            for figure in driver.find_elements(By.TAG_NAME, "figure"):
                assert figure.find_elements(By.CSS_SELECTOR, ".static")
            for still in stills:
                assert still.is_displayed()
                assert int(still.get_property("naturalWidth")) > 50
            for live in driver.find_elements(By.CSS_SELECTOR, ".stage, .canvas"):
                assert not live.is_displayed()
    finally:
        driver.quit()


CONTRAST = """
const [found, canvas] = [[], document.createElement('canvas').getContext('2d')];
function rgb(text) {
  canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data];
}
function background(element) {
  for (let e = element; e; e = e.parentElement) {
    const colour = getComputedStyle(e).backgroundColor;
    if (rgb(colour)[3] > 250) return rgb(colour);
  }
  return [255, 255, 255, 255];
}
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let node; (node = walker.nextNode()); ) {
  const element = node.parentElement;
  const text = node.textContent.trim();
  if (!text || !element.checkVisibility() || element.closest('svg,script,style')) continue;
  const ink = rgb(getComputedStyle(element).color);
  found.push([ink.slice(0, 3), background(element).slice(0, 3), text.slice(0, 30)]);
}
return found;
"""


def luminance(colour):
    """Relative luminance of sRGB: WCAG 2.1."""
    parts = np.array(colour) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable_in_light_and_dark(browser, pages, scheme):
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    try:
        for name in NAMES:
            visit(browser, pages / name)
            texts = browser.execute_script(CONTRAST)
            assert len(texts) > 10
            paper = luminance(texts[0][1])
            assert (paper < 0.1) == (scheme == "dark")
            for ink, ground, text in texts:
                pair = sorted((luminance(ink), luminance(ground)))
                assert (pair[1] + 0.05) / (pair[0] + 0.05) >= 4.5, (name, text, ink, ground)
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
