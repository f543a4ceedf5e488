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
    print(_markdown(shown) if args.markdown else _text(shown, shutil.get_terminal_size((120, 24)).columns))
    return 0


def _text(shown: Card, width: int) -> str:
    parts = [shown.name]
    for paragraph in shown.description.split("\n\n"):
        items = re.split(r"\n(?=\* )", paragraph)  # each item of a list starts a line
        parts.append("\n".join(_filled(item, width, indent="  " * item.startswith("* ")) for item in items))
    parts.append(text_table((), shown.facts, width=width))
    for section in shown.sections:
        body = text_table(section.header, section.rows, width=width - 2) if section.rows else section.text
        notes = [_filled(note, width - 2, indent="    ") for note in section.footnotes]
        parts.append(section.title + "\n" + textwrap.indent("\n".join([body, *notes]), "  "))
    return "\n\n".join(parts)


def _filled(text: str, width: int, *, indent: str) -> str:
    return textwrap.fill(sanitize_text(" ".join(text.split())), width, subsequent_indent=indent)


def _markdown(shown: Card) -> str:
    parts = [f"# {shown.name}", _escaped(shown.description), _markdown_table(("Property", "Value"), shown.facts)]
    for section in shown.sections:
        body = _markdown_table(section.header, section.rows) if section.rows else section.text
        notes = "\n".join(f"* {_escaped(note)}" for note in section.footnotes)
        parts += filter(None, (f"## {section.title}", body, notes))
    return "\n\n".join(parts)


def _markdown_table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [header, ("---",) * len(header), *(map(_escaped, row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _escaped(text: str) -> str:
    r"""Escape what Markdown would format in mathematics, outside code and bullets: ``S_t * q`` to ``S\_t \* q``."""
    pieces = [piece if i % 2 else re.sub(r"([\\*_<\[\]|])", r"\\\1", piece) for i, piece in enumerate(text.split("`"))]
    return re.sub(r"^\\\* ", "* ", "`".join(pieces), flags=re.MULTILINE)
