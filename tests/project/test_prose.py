"""Pages of the documentation are plain English: no banned phrases, and no sentence of more than 35 words.

Code and quotations are not checked. `make lint` checks the spelling, and single banned words, with codespell.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.helpers.committed import committed
from tests.helpers.documents import ROOT

MOST_WORDS = 35
PHRASES = (
    *("comes? along", "is none", "are none", "no numbers?", "that are no", "what became of", "what comes of"),
    *("go(?:es)? on", "went on", "going on", "stands?", "stood", "says of", "asked for", "look(?:ed)? up", "look-ups?"),
    *("to the bit", "a row a", "a token a", "one a GPU", "held (?:to|against)", "lies? in"),
    "holds? \\w+ (?:to|against)",
    *("and no more", "not at hand", "as it comes", "for ever", "next to nothing", "as far as", "anything at all"),
    *("of it(?=[.:;!?])", "in words", "the field", "a (?:short )?visit", "is no (?:part|subclass|measure) of", "anew"),
)
"""Beyond the words of scripts/banned_words.txt: what codespell, which reads single words, does not find."""
WORDS = re.findall(r"^(\w+)->", (ROOT / "scripts/banned_words.txt").read_text(), re.MULTILINE)
BANNED = re.compile(rf"\b(?:{'|'.join([*PHRASES, *WORDS])})\b", re.IGNORECASE)
ALLOWED = ("stands for", "stand-in")
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES += committed("docs/**/*.md", "results/*/README.md")


def paragraphs(markdown: str) -> Iterator[str]:
    """Yield paragraphs, list items and table cells, without code."""
    text = re.sub(r"^(```|~~~).*?^\1", "", markdown, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<!--.*?-->|<[^<>]+>", "", text, flags=re.DOTALL)
    text = re.sub(r"`[^`]+`", "CODE", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*|:#]|\d+\.) )", text):
        for cell in block.split("|") if block.lstrip().startswith("|") else [block]:
            yield " ".join(cell.split())


def sentences(text: str) -> list[str]:
    return [part for part in re.split(r"(?<=[.!?:;])\s+(?=[^a-z0-9\s])", text) if part]


def length(sentence: str) -> int:
    return len(re.findall(r"[^\W\d_][\w'’-]*", sentence))


def faults(text: str) -> list[str]:
    """Return the banned phrases and the long sentences of a paragraph."""
    for allowed in ALLOWED:
        text = text.replace(allowed, "")
    unquoted = re.sub(r"[\"“][^\"”]*[\"”]", "", text)
    found = [f"'{phrase}' in: {text[:120]}" for phrase in BANNED.findall(unquoted)]
    return found + [f"{length(one)} words: {one[:120]}" for one in sentences(text) if length(one) > MOST_WORDS]


def test_pages() -> None:
    for page in PAGES:
        text = re.split(r"^## .*Banned", page.read_text(), flags=re.MULTILINE)[0]
        assert [fault for paragraph in paragraphs(text) for fault in faults(paragraph)] == [], page


def test_documents_stay_short() -> None:
    """In all at most 26,000 words, and a page 1,200, without what programs write between markers."""
    pages = {page: page.read_text() for page in committed("docs/**/*.md")}
    written = {
        page: len(re.sub(r"<!-- (\w+)(?:: .*?)? -->.*?<!-- /\1 -->", "", text, flags=re.DOTALL).split())
        for page, text in pages.items()
    }
    assert sum(written.values()) <= 26_000
    assert {page: words for page, words in written.items() if words > 1_200} == {}


def test_the_menu_is_short_and_begins_with_the_benchmark() -> None:
    """At most 38 pages, those included that exist on the site only."""
    pages = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert len(pages) <= 38
    assert {str(page.relative_to(ROOT / "docs")) for page in committed("docs/**/*.md")} <= set(pages)
    first = ["index", "install", "one-cell", "sweep", "slurm", "measure-cost", "csv-and-index", "reproduce-the-paper"]
    assert [Path(page).stem for page in pages[:10]] == [*first, "your-first-attention", "data"]


def test_the_lint_finds_what_it_is_for() -> None:
    assert len(faults("Kill it and it goes on, to the bit.")) == 2
    assert faults("The scores stand beside those of trivial answers.")
    assert faults(" ".join(["word"] * 36))
    assert not faults('An interrupted run resumes. Quoted: "it goes on".')
