"""The page in a real browser: sorting, choice, links, phone, no errors and no network."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.select import Select

from cab.cli.main import main
from cab.records.files import PAPER_DIR
from cab.results.published import rows
from tests.helpers.made_records import make_record, number
from tests.helpers.suite_records import made_suite as made_suite

pytestmark = pytest.mark.browser


def make_page(browser: webdriver.Chrome, *results: Path, out: Path) -> None:
    assert main(["leaderboard", *map(str, results), "--out", str(out)]) == 0
    open_page(browser, out)


def open_page(browser: webdriver.Chrome, out: Path) -> str:
    show(browser)
    browser.get("about:blank")
    for kind in ("browser", "performance"):
        browser.get_log(kind)
    browser.get((out / "index.html").as_uri())
    return (out / "index.html").as_uri()


@pytest.fixture
def page(browser: webdriver.Chrome, suite_out: Path) -> Iterator[webdriver.Chrome]:
    """The page of the suite, open; whatever a test does there, it causes neither an error nor a request."""
    address = open_page(browser, suite_out)
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


def column(page: webdriver.Chrome, table: str, label: str) -> list[str]:
    """The texts of a column in the rows that are shown."""
    headers = page.find_elements(By.CSS_SELECTOR, f"#{table} th[aria-sort]")
    number = next(place for place, header in enumerate(headers) if header.text.startswith(label))
    rows = page.find_elements(By.CSS_SELECTOR, f"#{table} tr[data-name]")
    cells = (row.find_elements(By.CSS_SELECTOR, "th, td")[number] for row in rows if row.is_displayed())
    return [cell.text for cell in cells]


def header(page: webdriver.Chrome, table: str, label: str) -> WebElement:
    headers = page.find_elements(By.CSS_SELECTOR, f"#{table} th[aria-sort]")
    return next(header for header in headers if header.text.startswith(label))


def test_sorting(page: webdriver.Chrome) -> None:
    table = "mini-NC-table"
    numbers = [float(text.split()[0]) for text in column(page, table, "mse") if text != "-"]
    for keys, descending in ((Keys.ENTER, False), (Keys.SPACE, True)):  # lower is better, so the best comes first
        header(page, table, "mse").find_element(By.TAG_NAME, "button").send_keys(keys)
        found = [float(text.split()[0]) for text in column(page, table, "mse")]
        assert found == sorted(numbers, reverse=descending)
        order = "descending" if descending else "ascending"
        assert header(page, table, "mse").get_attribute("aria-sort") == order
    header(page, table, "attention").find_element(By.TAG_NAME, "button").click()
    assert column(page, table, "attention") == [
        "abc",
        "local",
        "repeat_last_value (trivial baseline)",
        "s4d",
        "vanilla",
    ]
    assert header(page, table, "mse").get_attribute("aria-sort") == "none"
    for _ in range(2):
        header(page, "mini-CS-table", "all").find_element(By.TAG_NAME, "button").click()
        assert column(page, "mini-CS-table", "attention")[-1] == "s4d", "a missing value is last in both orders"
    missing = page.find_element(By.CSS_SELECTOR, '#mini-CS-table tr[data-name="s4d"] td[title]')
    title = missing.get_attribute("title") or ""
    assert title.startswith("lm: missing: gpt2 pg19 ppl; sum: missing: ")
    assert title.endswith("; no index in tts, sum, lm")


def test_a_name_opens_its_summary(page: webdriver.Chrome) -> None:
    card = page.find_element(By.ID, "card-abc")
    assert not card.is_displayed()
    page.find_element(By.CSS_SELECTOR, '#mini-NC-table tr[data-name="abc"] th a').click()
    assert card.is_displayed()
    page.refresh()
    assert page.find_element(By.ID, "card-abc").is_displayed()


def test_a_phone_scrolls_down_only_and_dark_mode_inverts_figures(
    browser: webdriver.Chrome, made_suite: Path, suite_folder: Path, tmp_path: Path
) -> None:
    make_record({"mse": 1.0}, preset="one_word_" * 45).write(tmp_path / "long")
    make_page(browser, made_suite, suite_folder, tmp_path / "long", out=tmp_path / "out")
    sizes = "const box = document.querySelector('#board .scroll'); return box.scrollWidth - box.clientWidth"
    assert browser.execute_script(sizes) == 0, "the board fits a wide window"
    width = 390
    show(browser, width=width, scheme="dark")
    browser.execute_script("for (const fold of document.querySelectorAll('details')) fold.open = true")
    assert browser.execute_script("return document.documentElement.scrollWidth") == width
    for image in browser.find_elements(By.TAG_NAME, "img"):
        assert image.rect["x"] >= 0
        assert image.rect["x"] + image.rect["width"] <= width
    board = browser.find_element(By.ID, "suite-board-table")
    assert board.rect["width"] <= width, "all cells of a row are visible"
    label = "return getComputedStyle(document.querySelector('#suite-board-table td + td'), '::before').content"
    assert browser.execute_script(label) == '"recall CS"'
    columns = "return getComputedStyle(document.querySelector('#suite-board-table tbody tr')).gridTemplateColumns"
    assert len(browser.execute_script(columns).split()) == 3
    style = "return ['body', 'img'].map((name) => getComputedStyle(document.querySelector(name)))"
    background, inverted = browser.execute_script(f"{style}.map((it) => it.filter + it.backgroundColor)")
    assert background == "nonergb(13, 17, 23)"
    assert inverted.startswith("invert(1)")


def test_published_tables_fit_the_window_with_own_results(browser: webdriver.Chrome, tmp_path: Path) -> None:
    """Own results of all cells of NS, whose table is the widest: a mean and a deviation per metric, and costs."""
    cells: defaultdict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    for row in rows("results.csv"):
        if (row["pattern"], row["attention"]) == ("NS", "abc"):
            cells[row["task"], row["backbone"], row["dataset"]][row["metric"]] = float(row["value"])
    for ((task, backbone, dataset), printed), seed in itertools.product(cells.items(), (1, 2)):
        names = {"task": task, "backbone": backbone, "dataset": dataset, "config_variant": "", "pattern": "NS"}
        values = {metric: value * number(metric, seed) ** 0.01 for metric, value in printed.items()}
        make_record(values, **names, attention="abc", preset="paper", seed=seed).write(tmp_path / "own")
    make_page(browser, tmp_path / "own", PAPER_DIR, out=tmp_path / "out")
    browser.execute_script("for (const fold of document.querySelectorAll('details')) fold.open = true")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 1280
    boxes = "return [...document.querySelectorAll('.scroll')].filter((box) => box.scrollWidth > box.clientWidth)"
    assert [box.get_attribute("aria-label") for box in browser.execute_script(boxes)] == []
    groups = browser.find_elements(By.CSS_SELECTOR, "#paper-NS-table [scope=colgroup]")
    assert {"compositional index", "tts / ljspeech / transformer_tts"} <= {group.text for group in groups}
    assert len(column(browser, "paper-NS-table", "ppl")) > 10
    [own] = browser.find_elements(By.CSS_SELECTOR, "#paper-NS-table tr.own")
    assert own.get_attribute("data-name") == "abc"


def test_hostile_names_stay_text(browser: webdriver.Chrome, tmp_path: Path, add: Callable[..., Path]) -> None:
    script = "document.title='owned'"
    names = [f"<img src=x onerror={script}>", f"</script><script>{script}</script>", "vanilla"]
    for value, name in enumerate(names):
        add({"mse": 1.5 + value}, attention=name, command=names[0])
    make_page(browser, tmp_path / "results", out=tmp_path / "out")
    assert sorted(column(browser, "mini-NC-table", "attention")) == sorted(names)
    assert browser.title == "Attention leaderboard"
    assert browser.get_log("browser") == []


def test_a_choice_hides_columns_and_rows_and_sorts(
    browser: webdriver.Chrome, made_suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's rows are first; the state of softmax attention grows; gla and ssd have no result in recall."""
    monkeypatch.setattr("cab.results.suite_board.is_committed", lambda *_: True)
    make_page(browser, shutil.copytree(made_suite, tmp_path / "own"), out=tmp_path / "out")
    table = "suite-board-table"

    def names() -> list[str]:
        return [text.split()[0] for text in column(browser, table, "attention")]

    assert names() == ["linear", "gla", "ssd", "abc", "local", "vanilla", "none"]
    headers = browser.find_elements(By.CSS_SELECTOR, f"#{table} th[aria-sort]")
    assert not any(head.text.endswith("NS") for head in headers if head.is_displayed())
    browser.execute_script("document.querySelector('form select').focus()")
    press(browser, Keys.TAB, Keys.SPACE)
    assert names() == ["abc", "linear", "local", "none", "gla", "ssd"]
    assert header(browser, table, "recall CS").get_attribute("aria-sort") == "descending"
    assert browser.find_element(By.CSS_SELECTOR, "form output").text == "6 of 7 attentions"
    order = Select(browser.find_element(By.NAME, "sort"))
    assert "time NS" not in [option.text for option in order.options]
    order.select_by_visible_text("family")
    assert column(browser, table, "family") == sorted(column(browser, table, "family"))
    Select(browser.find_element(By.NAME, "pattern")).select_by_visible_text("any pattern")
    assert header(browser, table, "time NS").is_displayed()
