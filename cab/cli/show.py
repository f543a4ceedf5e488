"""`cab show`: the card of an attention as text or Markdown."""

from __future__ import annotations

import argparse
import re
import shutil
import textwrap
from collections.abc import Sequence

from cab.files.disk import sanitize_text
from cab.files.text_table import text_table
from cab.reports.card import Card, card


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("attention", help="registered name, or FILE.py:Class")
    parser.add_argument("--markdown", action="store_true", help="print Markdown instead of text")


def run(args: argparse.Namespace) -> int:
    shown = card(args.attention)
    print(markdown(shown) if args.markdown else text(shown, shutil.get_terminal_size((120, 24)).columns))
    return 0


def text(shown: Card, width: int) -> str:
    """Format a card for a terminal of this many columns."""
    paragraphs = [_filled(paragraph, width) for paragraph in shown.description.split("\n\n")]
    facts = text_table((), shown.facts, width=width)
    parts = [shown.summary.name, *paragraphs, facts]
    for section in shown.sections:
        body = text_table(section.header, section.rows, width=width - 2) if section.rows else section.text
        notes = (textwrap.fill(note, width - 2, subsequent_indent="    ") for note in section.footnotes)
        parts.append(section.title + "\n" + textwrap.indent("\n".join([body, *notes]), "  "))
    return "\n\n".join(parts)


def _filled(paragraph: str, width: int) -> str:
    """Wrap a paragraph; each item of a list starts a line."""
    items = re.split(r"\n(?=\* )", paragraph)
    return "\n".join(
        textwrap.fill(sanitize_text(" ".join(item.split())), width, subsequent_indent="  " * item.startswith("* "))
        for item in items
    )


def markdown(shown: Card) -> str:
    """Format a card as a page of Markdown."""
    parts = [
        f"# {shown.summary.name}",
        _plain(shown.description),
        _markdown_table(("Property", "Value"), shown.facts),
    ]
    for section in shown.sections:
        body = _markdown_table(section.header, section.rows) if section.rows else section.text
        notes = "\n".join(f"* {_plain(note)}" for note in section.footnotes)
        parts.append("\n\n".join(filter(None, (f"## {section.title}", body, notes))))
    return "\n\n".join(parts)


def _markdown_table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [header, ("---",) * len(header), *(tuple(map(_plain, row)) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _plain(words: str) -> str:
    r"""Escape what Markdown would format in mathematics, outside code and bullets: ``S_t * q`` to ``S\_t \* q``."""
    escaped = [part if i % 2 else _escape(part) for i, part in enumerate(words.split("`"))]
    return re.sub(r"^\\\* ", "* ", "`".join(escaped), flags=re.MULTILINE)


def _escape(words: str) -> str:
    for sign in "\\*_<[]|":
        words = words.replace(sign, f"\\{sign}")
    return words
