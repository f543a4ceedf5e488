"""The page of a leaderboard, with its elements."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

from cab.cli.main import main


class Elements(HTMLParser):
    """Every element's tag and attributes, and the text inside of it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        if self.found:
            self.texts.append((self.found[-1][0], data))

    def of(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.found if name == tag]


def page_of(results: Path, out: Path, *arguments: str) -> tuple[str, Elements]:
    assert main(["leaderboard", str(results), "--out", str(out), *arguments]) == 0
    page = (out / "index.html").read_text(encoding="utf-8")
    return page, Elements(page)
