"""The page in a real browser: tabs, sorting, links, records, filters, phone, no errors and no network."""

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

from cab.cli.main import main
from tests.cab.suite.suite_records import made_suite as made_suite

pytestmark = pytest.mark.browser


def open_page(browser: webdriver.Chrome, results: Path, out: Path, *arguments: str) -> str:
    assert main(["leaderboard", str(results), "--out", str(out), *arguments]) == 0
    show(browser)
    browser.get("about:blank")
    for kind in ("browser", "performance"):
        browser.get_log(kind)
    browser.get((out / "index.html").as_uri())
    return (out / "index.html").as_uri()


@pytest.fixture
def page(browser: webdriver.Chrome, suite_folder: Path, tmp_path: Path) -> Iterator[webdriver.Chrome]:
    """The page of the suite, open; whatever a test does there, it causes neither an error nor a request."""
    address = open_page(browser, suite_folder, tmp_path / "out")
    yield browser
    assert browser.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    requests = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    outside = {re.sub("#.*", "", url) for url in requests if not url.startswith("data:")}
    assert outside <= {address}


def show(browser: webdriver.Chrome, *, width: int = 1280, scheme: str = "light") -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


def press(browser: webdriver.Chrome, *keys: str) -> WebElement:
    """Press keys, and return the element in focus, which is visibly so."""
    ActionChains(browser).send_keys(*keys).perform()
    focused = browser.switch_to.active_element
    assert browser.execute_script("return getComputedStyle(arguments[0]).outlineStyle", focused) != "none"
    return focused


def tabs(page: webdriver.Chrome) -> list[WebElement]:
    return page.find_elements(By.CSS_SELECTOR, '[role="tab"]')


def shown_panels(page: webdriver.Chrome) -> list[str]:
    panels = page.find_elements(By.CSS_SELECTOR, '[role="tabpanel"]')
    return [panel.get_attribute("id") for panel in panels if panel.is_displayed()]


def column(page: webdriver.Chrome, table: str, number: int) -> list[str]:
    rows = page.find_elements(By.CSS_SELECTOR, f"#{table} tbody:first-of-type tr")
    cells = (row.find_elements(By.CSS_SELECTOR, "th, td")[number] for row in rows if row.is_displayed())
    return [cell.text.split("\n")[0] for cell in cells]


def test_tabs_by_mouse_and_keyboard(page: webdriver.Chrome) -> None:
    assert shown_panels(page) == ["mini-CS"]
    tabs(page)[1].click()
    assert shown_panels(page) == ["mini-NC"]
    assert page.current_url.endswith("#mini-NC")
    page.refresh()
    assert shown_panels(page) == ["mini-NC"]
    page.execute_script("arguments[0].focus()", tabs(page)[1])
    assert press(page, Keys.ARROW_LEFT, Keys.ARROW_LEFT) == tabs(page)[-1]
    press(page, Keys.HOME)
    assert shown_panels(page) == ["mini-CS"]
    assert [tab.get_attribute("aria-selected") for tab in tabs(page)] == ["true", "false", "false"]
    assert press(page, Keys.TAB).get_attribute("role") == "region", "Tab leaves the tabs for the panel"


def test_sorting(page: webdriver.Chrome) -> None:
    tabs(page)[1].click()
    headers = page.find_elements(By.CSS_SELECTOR, "#mini-NC-metrics thead th[aria-sort]")
    mse = next(place for place, header in enumerate(headers) if header.text.startswith("mse"))
    numbers = [float(text) for text in column(page, "mini-NC-metrics", mse)]
    for keys, descending in ((Keys.ENTER, False), (Keys.SPACE, True)):  # lower is better, so the best comes first
        headers[mse].find_element(By.TAG_NAME, "button").send_keys(keys)
        ordered = [float(text) for text in column(page, "mini-NC-metrics", mse)]
        assert ordered == sorted(numbers, reverse=descending)
        assert headers[mse].get_attribute("aria-sort") == ("descending" if descending else "ascending")
    headers[0].find_element(By.TAG_NAME, "button").click()
    assert column(page, "mini-NC-metrics", 0) == ["abc", "local", "s4d", "vanilla"]
    fixed = page.find_elements(By.CSS_SELECTOR, "#mini-NC-metrics tbody.fixed th")
    assert [name.text for name in fixed] == ["repeat_last_value"]
    tabs(page)[0].click()
    headers = page.find_elements(By.CSS_SELECTOR, "#mini-CS-index thead th")
    for _ in range(2):
        headers[1].find_element(By.TAG_NAME, "button").click()
        assert column(page, "mini-CS-index", 0)[-1] == "s4d", "a missing value is last in both orders"
    note = page.find_element(By.CSS_SELECTOR, "#mini-CS-index sup a")
    assert page.find_element(By.ID, note.get_property("hash")[1:]).text == "no index in lm"


def test_a_number_leads_to_its_records(page: webdriver.Chrome) -> None:
    tabs(page)[1].click()
    row = page.find_element(By.CSS_SELECTOR, '#mini-NC-metrics tr[data-name="abc"]')
    for _ in range(2):  # the second click leaves the address as it is
        row.find_element(By.CSS_SELECTOR, "td a").click()
        shown = page.find_elements(By.CSS_SELECTOR, "#list details")
        assert [record.text.startswith("abc NC, ") for record in shown] == [True, True], "one record per seed"
        assert page.switch_to.active_element.get_attribute("id") == "records-heading"
    assert "2 of 30 records" in page.find_element(By.ID, "found").text
    shown[0].find_element(By.TAG_NAME, "summary").click()
    assert "0123456789abcdef0123" in shown[0].text
    path = Path(shown[0].find_element(By.TAG_NAME, "a").get_property("pathname"))
    assert json.loads(path.read_text())["cell"]["attention"] == "abc"
    page.find_element(By.ID, "find").send_keys("vanilla")
    assert "0 of 30" in page.find_element(By.ID, "found").text
    page.find_element(By.CSS_SELECTOR, "form button").click()
    page.find_element(By.ID, "find").send_keys("gpt2 seed=1 local")
    assert "1 of 30" in page.find_element(By.ID, "found").text


def test_a_phone_scrolls_down_only_and_dark_mode_inverts_figures(page: webdriver.Chrome) -> None:
    show(page, width=320, scheme="dark")
    for tab in tabs(page):
        tab.click()
        assert page.execute_script("return document.documentElement.scrollWidth") == 320
        for image in page.find_elements(By.TAG_NAME, "img"):
            if image.is_displayed():
                assert image.rect["x"] >= 0
                assert image.rect["x"] + image.rect["width"] <= 320
    style = "return ['body', 'img'].map((name) => getComputedStyle(document.querySelector(name)))"
    background, inverted = page.execute_script(f"{style}.map((it) => it.filter + it.backgroundColor)")
    assert background == "nonergb(13, 17, 23)"
    assert inverted.startswith("invert(1)")


def test_hostile_names_stay_text(browser: webdriver.Chrome, tmp_path: Path, add: Callable[..., Path]) -> None:
    script = "document.title='owned'"
    names = [f"<img src=x onerror={script}>", f"</script><script>{script}</script>", "vanilla"]
    for value, name in enumerate(names):
        add({"mse": 1.5 + value}, attention=name, command=names[0])
    open_page(browser, tmp_path / "results", tmp_path / "out")
    assert sorted(column(browser, "mini-NC-index", 0)) == sorted(names)
    browser.find_elements(By.CSS_SELECTOR, "#mini-NC-metrics td a")[0].click()
    assert len(browser.find_elements(By.CSS_SELECTOR, "#list details")) == 1
    assert browser.title == "Attention leaderboard"
    assert browser.get_log("browser") == []


def test_the_board_is_filtered_by_keyboard(browser: webdriver.Chrome, made_suite: Path, tmp_path: Path) -> None:
    open_page(browser, made_suite, tmp_path / "out")
    names = column(browser, "suite-board-table", 0)
    browser.execute_script("document.querySelector('nav a:last-child').focus()")
    press(browser, Keys.TAB, Keys.TAB)
    chosen = press(browser, Keys.ARROW_DOWN).get_attribute("value")
    shown = column(browser, "suite-board-table", -1)
    assert shown == [chosen] * len(shown)
    assert 0 < len(shown) < len(names)
    assert browser.find_element(By.CSS_SELECTOR, ".filter output").text == f"{len(shown)} of {len(names)} attentions"
    press(browser, Keys.HOME, Keys.TAB, Keys.SPACE)
    assert 0 < len(column(browser, "suite-board-table", 0)) < len(names)
    press(browser, Keys.SPACE)
    assert column(browser, "suite-board-table", 0) == names
    browser.execute_script("document.querySelector('#cells summary').focus()")
    press(browser, Keys.ENTER)
    assert browser.find_element(By.CSS_SELECTOR, "#cells details table").is_displayed()
