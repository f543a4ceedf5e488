"""The page in a real browser: tabs, sorting, links, records, phone, dark mode, no errors and no network."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from cab.cli.main import main
from tests.cab.suite.suite_records import made_suite as made_suite

pytestmark = pytest.mark.browser


@pytest.fixture
def page(browser: webdriver.Chrome, suite_folder: Path, tmp_path: Path) -> Iterator[webdriver.Chrome]:
    """The page of the suite, open; whatever a test does there, no error and no request may come of it."""
    with (suite_folder / "costs.txt").open("w") as file:
        file.write("attention,pattern,phase,length,seconds,bytes\n")
        for length in (256, 512, 1024, 2048):
            file.write(f"vanilla,NS,forward,{length},{length**2 * 1e-6},{length**2}\n")
            file.write(f"abc,NS,forward,{length},{length * 1e-3},{length * 1000}\n")
    costs = ["--costs", str(suite_folder / "costs.txt")]
    assert main(["leaderboard", str(suite_folder), "--out", str(tmp_path / "out"), *costs]) == 0
    show(browser)
    browser.get("about:blank")
    for kind in ("browser", "performance"):
        browser.get_log(kind)
    browser.get((tmp_path / "out" / "index.html").as_uri())
    yield browser
    assert browser.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    requested = [
        event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"
    ]
    assert {re.sub("#.*", "", address) for address in requested} <= {
        (tmp_path / "out" / "index.html").as_uri(), "data:,",
    }  # fmt: skip


def show(browser: webdriver.Chrome, *, width: int = 1280, scheme: str = "light") -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


def tabs(page: webdriver.Chrome) -> list[WebElement]:
    return page.find_elements(By.CSS_SELECTOR, '[role="tab"]')


def shown_panels(page: webdriver.Chrome) -> list[str]:
    panels = page.find_elements(By.CSS_SELECTOR, '[role="tabpanel"]')
    return [panel.get_attribute("id") for panel in panels if panel.is_displayed()]


def column(page: webdriver.Chrome, table: str, number: int) -> list[str]:
    rows = page.find_elements(By.CSS_SELECTOR, f"#{table} tbody:first-of-type tr")
    return [row.find_elements(By.CSS_SELECTOR, "th, td")[number].text.split("\n")[0] for row in rows]


def test_tabs_by_mouse(page: webdriver.Chrome) -> None:
    assert shown_panels(page) == ["mini-CS"]
    tabs(page)[1].click()
    assert shown_panels(page) == ["mini-NC"]
    assert [tab.get_attribute("aria-selected") for tab in tabs(page)] == ["false", "true", "false"]
    assert page.current_url.endswith("#mini-NC")
    page.refresh()
    assert shown_panels(page) == ["mini-NC"]


def test_tabs_by_keyboard(page: webdriver.Chrome) -> None:
    def press(*keys: str) -> None:
        ActionChains(page).send_keys(*keys).perform()

    page.execute_script("arguments[0].focus()", tabs(page)[0])
    press(Keys.ARROW_RIGHT)
    assert shown_panels(page) == ["mini-NC"]
    assert page.switch_to.active_element == tabs(page)[1]
    press(Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    assert page.switch_to.active_element == tabs(page)[-1]
    press(Keys.HOME)
    assert shown_panels(page) == ["mini-CS"]
    press(Keys.END)
    assert page.switch_to.active_element == tabs(page)[-1]
    assert [tab.get_attribute("tabindex") for tab in tabs(page)] == ["-1", "-1", "0"]
    press(Keys.HOME, Keys.TAB)
    assert page.switch_to.active_element.get_attribute("role") == "region", "Tab leaves the tabs for the panel"


def test_sorting(page: webdriver.Chrome) -> None:
    tabs(page)[1].click()
    headers = page.find_elements(By.CSS_SELECTOR, "#mini-NC-metrics thead th[aria-sort]")
    mse = next(place for place, header in enumerate(headers) if header.text.startswith("mse"))

    def numbers() -> list[float]:
        return [float(text) for text in column(page, "mini-NC-metrics", mse)]

    before = numbers()
    headers[mse].find_element(By.TAG_NAME, "button").click()
    assert numbers() == sorted(before), "lower is better, so the best comes first"
    assert headers[mse].get_attribute("aria-sort") == "ascending"
    headers[mse].find_element(By.TAG_NAME, "button").send_keys(Keys.ENTER)
    assert numbers() == sorted(before, reverse=True)
    assert headers[mse].get_attribute("aria-sort") == "descending"
    headers[0].find_element(By.TAG_NAME, "button").send_keys(Keys.SPACE)
    assert column(page, "mini-NC-metrics", 0) == ["abc", "local", "s4d", "vanilla"]
    assert [header.get_attribute("aria-sort") for header in headers] == ["ascending"] + ["none"] * (len(headers) - 1)
    fixed = page.find_elements(By.CSS_SELECTOR, "#mini-NC-metrics tbody.fixed th")
    assert [name.text for name in fixed] == ["repeat_last_value"]


def test_what_has_no_number_is_last_both_ways(page: webdriver.Chrome) -> None:
    headers = page.find_elements(By.CSS_SELECTOR, "#mini-CS-index thead th")
    assert column(page, "mini-CS-index", 0)[-1] == "s4d"
    for direction in ("ascending", "descending"):
        headers[1].find_element(By.TAG_NAME, "button").click()
        assert headers[1].get_attribute("aria-sort") == direction
        assert column(page, "mini-CS-index", 0)[-1] == "s4d"
    note = page.find_element(By.CSS_SELECTOR, "#mini-CS-index sup a")
    reason = page.find_element(By.ID, note.get_property("hash")[1:])
    assert reason.text == "no index in lm"


def test_a_number_leads_to_its_records(page: webdriver.Chrome) -> None:
    tabs(page)[1].click()
    row = page.find_element(By.CSS_SELECTOR, '#mini-NC-metrics tr[data-name="abc"]')
    for _ in range(2):  # the second click leaves the address as it is
        row.find_element(By.CSS_SELECTOR, "td a").click()
        shown = page.find_elements(By.CSS_SELECTOR, "#list details")
        assert len(shown) == 2, "a record a seed"
        assert all(record.text.startswith("abc NC, ") for record in shown)
        assert page.switch_to.active_element.get_attribute("id") == "records-heading"
    assert "2 of 30 records" in page.find_element(By.ID, "found").text
    shown[0].find_element(By.TAG_NAME, "summary").click()
    assert "0123456789abcdef0123" in shown[0].text
    link = shown[0].find_element(By.TAG_NAME, "a")
    path = Path(link.get_property("pathname"))
    assert json.loads(path.read_text())["cell"]["attention"] == "abc"
    page.find_element(By.ID, "find").send_keys("vanilla")
    assert "0 of 30" in page.find_element(By.ID, "found").text
    page.find_element(By.CSS_SELECTOR, "form button").click()
    page.find_element(By.ID, "find").send_keys("gpt2 seed=1 local")
    assert "1 of 30" in page.find_element(By.ID, "found").text


def test_pointing_at_an_attention_shows_it_everywhere(page: webdriver.Chrome) -> None:
    row = page.find_element(By.CSS_SELECTOR, '#mini-CS-index tr[data-name="local"] th')
    ActionChains(page).move_to_element(row).perform()
    hot = page.find_elements(By.CSS_SELECTOR, "#mini-CS svg .hot")
    assert {mark.get_attribute("data-name") for mark in hot} == {"local"}
    assert len(page.find_elements(By.CSS_SELECTOR, "#mini-CS svg:has(.hot)")) >= 4


@pytest.mark.parametrize("width", [375, 320])
def test_a_phone_scrolls_down_only(page: webdriver.Chrome, width: int) -> None:
    show(page, width=width)
    for tab in tabs(page):
        tab.click()
        wide = page.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
        assert wide == [width, width]
        for svg in page.find_elements(By.TAG_NAME, "svg"):
            if svg.is_displayed():
                assert svg.rect["x"] >= 0
                assert svg.rect["x"] + svg.rect["width"] <= width


def test_dark_mode(page: webdriver.Chrome) -> None:
    colours = {}
    for scheme in ("light", "dark"):
        show(page, scheme=scheme)
        colours[scheme] = page.execute_script(
            "const of = (selector, name) => getComputedStyle(document.querySelector(selector))[name];"
            "return [of('body', 'backgroundColor'), of('body', 'color'), of('svg text', 'fill'),"
            "        of('svg .mark path', 'stroke')]"
        )
    assert colours["light"][:3] == ["rgb(255, 255, 255)", "rgb(31, 35, 40)", "rgb(89, 99, 110)"]
    assert colours["dark"][:3] == ["rgb(13, 17, 23)", "rgb(230, 237, 243)", "rgb(154, 164, 175)"]
    assert colours["light"][3] != colours["dark"][3]


def test_hostile_names_stay_text(browser: webdriver.Chrome, tmp_path: Path, add: Callable[..., Path]) -> None:
    names = [
        "<img src=x onerror=document.title='owned'>",
        "</script><script>document.title='owned'</script>",
        "vanilla",
    ]
    for value, name in enumerate(names):
        add({"mse": 1.5 + value}, attention=name, command=names[0])
    assert main(["leaderboard", str(tmp_path / "results"), "--out", str(tmp_path / "out")]) == 0
    show(browser)
    browser.get_log("browser")
    browser.get((tmp_path / "out" / "index.html").as_uri())
    assert browser.title == "Attention leaderboard"
    assert sorted(column(browser, "mini-NC-index", 0)) == sorted(names)
    browser.find_elements(By.CSS_SELECTOR, "#mini-NC-metrics td a")[0].click()
    WebDriverWait(browser, 10).until(lambda b: len(b.find_elements(By.CSS_SELECTOR, "#list details")) == 1)
    assert browser.title == "Attention leaderboard"
    assert browser.get_log("browser") == []


def test_the_board_by_keyboard(browser: webdriver.Chrome, made_suite: Path, tmp_path: Path) -> None:
    """Filters, headers and blocks are reached and operated by keyboard, with a visible focus."""
    assert main(["leaderboard", str(made_suite), "--out", str(tmp_path / "out")]) == 0
    show(browser)
    browser.get((tmp_path / "out" / "index.html").as_uri())

    def press(*keys: str) -> WebElement:
        ActionChains(browser).send_keys(*keys).perform()
        focused = browser.switch_to.active_element
        outline = browser.execute_script("return getComputedStyle(arguments[0]).outlineStyle", focused)
        assert outline != "none", focused.get_attribute("outerHTML")
        return focused

    def names() -> list[str]:
        return [name for name in column(browser, "suite-board-table", 0) if name]

    before = names()
    browser.execute_script("document.querySelector('nav a:last-child').focus()")
    assert press(Keys.TAB).tag_name == "select"
    assert press(Keys.TAB).tag_name == "select"
    chosen = press(Keys.ARROW_DOWN).get_attribute("value")
    complexities = [text for text in column(browser, "suite-board-table", -1) if text]
    assert complexities == [chosen] * len(names())
    assert browser.find_element(By.CSS_SELECTOR, ".filter output").text == f"{len(names())} of {len(before)} attentions"
    press(Keys.HOME)
    assert press(Keys.TAB).get_attribute("type") == "checkbox"
    press(Keys.SPACE)
    assert 0 < len(names()) < len(before)
    press(Keys.SPACE)
    assert names() == before
    press(Keys.TAB)  # the table, which scrolls
    header = press(Keys.TAB)
    assert header.text == "attention"
    press(Keys.ENTER)
    assert names() == sorted(before, key=lambda name: name.removeprefix("† "))
    assert header.find_element(By.XPATH, "..").get_attribute("aria-sort") == "ascending"
    block = browser.find_element(By.CSS_SELECTOR, "#cells summary")
    browser.execute_script("arguments[0].focus()", block)
    press(Keys.ENTER)
    assert browser.find_element(By.CSS_SELECTOR, "#cells details table").is_displayed()
