"""Pages of the documentation are short and plain: no banned phrases, and no sentence of more than 35 words.

Code and quotations are not checked. `make lint` checks the spelling, and single banned words, with codespell.
"""

import re
from collections.abc import Iterator

from tests.helpers.documents import ROOT, committed

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
BANNED = re.compile(rf"\b(?:{'|'.join(PHRASES)})\b", re.IGNORECASE)
ALLOWED = re.compile(r"stands for|stand-in|[\"“][^\"”]*[\"”]")
PAGES = committed("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/**/*.md", "results/*/README.md")


def paragraphs(markdown: str) -> Iterator[str]:
    """Yield paragraphs, list items and table cells, without code."""
    text = re.sub(r"^(```|~~~).*?^\1", "", markdown, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<!--.*?-->|<[^<>]+>", "", text, flags=re.DOTALL)
    text = re.sub(r"`[^`]+`", "CODE", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*|:#]|\d+\.) )", text):
        for cell in block.split("|") if block.lstrip().startswith("|") else [block]:
            yield " ".join(cell.split())


def faults(text: str) -> list[str]:
    """Return the banned phrases and the long sentences of a paragraph."""
    sentences = re.split(r"(?<=[.!?:;])\s+(?=[^a-z0-9\s])", text)
    lengths = {one: len(re.findall(r"[^\W\d_][\w'’-]*", one)) for one in sentences}
    found = [f"'{phrase}' in: {text[:120]}" for phrase in BANNED.findall(ALLOWED.sub("", text))]
    return found + [f"{length} words: {one[:120]}" for one, length in lengths.items() if length > MOST_WORDS]


def test_pages():
    found = {page: [fault for each in paragraphs(page.read_text()) for fault in faults(each)] for page in PAGES}
    assert {page: of_page for page, of_page in found.items() if of_page} == {}


def test_documents_stay_short():
    """In all at most 26,000 words, and a page 1,200, without what programs write between markers; the README fits."""
    pages = {page: page.read_text() for page in committed("docs/**/*.md")}
    written = {
        page: len(re.sub(r"<!-- (\w+)(?:: .*?)? -->.*?<!-- /\1 -->", "", text, flags=re.DOTALL).split())
        for page, text in pages.items()
    }
    assert sum(written.values()) <= 26_000
    assert {page: words for page, words in written.items() if words > 1_200} == {}
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120
