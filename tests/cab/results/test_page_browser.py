"""The page works in a real browser: sorting, choice, text of results, no errors and no network."""

import json
import shutil

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.select import Select

from cab.cli.main import main
from tests.helpers.made_records import make_record, number
from tests.helpers.suite_records import made_suite as made_suite

SCRIPT = "document.title='owned'"
HOSTILE = (f"<img src=x onerror={SCRIPT}>", f"</script><script>{SCRIPT}</script>")


def column(page: webdriver.Chrome, table: str, label: str, *, click: bool = False) -> list[str]:
    """The texts of a column in the rows that are shown, perhaps after a click on its header."""
    headers = page.find_elements(By.CSS_SELECTOR, f"#{table} th[aria-sort]")
    place = next(place for place, header in enumerate(headers) if header.text.startswith(label))
    if click:
        headers[place].find_element(By.TAG_NAME, "button").click()
    rows = page.find_elements(By.CSS_SELECTOR, f"#{table} tr[data-name]")
    return [row.find_elements(By.CSS_SELECTOR, "th, td")[place].text for row in rows if row.is_displayed()]


@pytest.mark.browser
def test_the_page_works(browser, made_suite, tmp_path, monkeypatch):
    """The state of softmax attention grows; gla and ssd have no result in recall; S4D has none in mae."""
    monkeypatch.setattr("cab.results.suite_board.is_committed", lambda *_: True)
    own = shutil.copytree(made_suite, tmp_path / "own")
    for name in (*HOSTILE, "vanilla", "s4d"):
        metrics = {"mse": number(name)} | ({} if name == "s4d" else {"mae": number(name, 1)})
        make_record(metrics, attention=name, command=HOSTILE[0]).write(own)
    assert main(["leaderboard", str(own), "--out", str(tmp_path / "out")]) == 0
    address = (tmp_path / "out" / "index.html").as_uri()
    for kind in ("browser", "performance"):
        browser.get_log(kind)
    browser.get(address)
    browser.execute_script("document.querySelectorAll('details').forEach(part => part.open = true)")

    table = "mini-NC-table"
    numbers = [float(text) for text in column(browser, table, "mse") if text != "-"]
    assert [float(text) for text in column(browser, table, "mse", click=True)] == sorted(numbers), "lower is better"
    assert [float(text) for text in column(browser, table, "mse", click=True)] == sorted(numbers, reverse=True)
    assert sorted(column(browser, table, "attention", click=True)) == sorted((*HOSTILE, "vanilla", "s4d"))
    for _ in range(2):
        assert column(browser, table, "mae", click=True)[-1] == "-", "a missing value is last in both orders"

    board = "suite-board-table"
    assert column(browser, board, "attention")[0].startswith("linear"), "constant states are first"
    browser.find_element(By.CSS_SELECTOR, "form input").click()
    names = [text.split()[0] for text in column(browser, board, "attention")]
    assert names == ["abc", "linear", "local", "none", "gla", "ssd"]
    Select(browser.find_element(By.NAME, "sort")).select_by_visible_text("family")
    assert column(browser, board, "family") == sorted(column(browser, board, "family"))

    assert browser.title == "Attention leaderboard"
    assert browser.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    requests = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    assert {url for url in requests if not url.startswith("data:")} == {address}
