"""Matplotlib figures as SVG inside a page: real text, the page's colours in light and dark, named marks.

Nothing but the picture is left of matplotlib's output: its style sheet, metadata and identifiers go, colours of the
palette become the page's CSS variables, and marks (:func:`cab.reports.figures.mark`) carry the attention they show.
"""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

from cab.reports.figures import CSS_VARIABLES, read_mark, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SVG = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"
_REFERENCE = re.compile(r"url\(#([^)]+)\)")
_FONT = re.compile(r" ?font-family: [^;]*;?")
_COLOUR = re.compile(r"#[0-9a-f]{6}")


def inline_svg(figure: Figure, *, name: str, title: str) -> str:
    """``figure`` as an ``<svg>`` element.

    Args:
        name: unique on the page; prefixes the identifiers inside.
        title: what a screen reader says; the numbers themselves belong in a table beside the picture.
    """
    buffer = io.StringIO()
    with style():
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    # the text is matplotlib's own output, in which every name from a result is already escaped
    root = ET.fromstring(buffer.getvalue())
    for child in (root.find(f"{_SVG}metadata"), root.find(f"{_SVG}defs[{_SVG}style]")):
        if child is not None:
            root.remove(child)
    for element in root.iter():
        _adapt(element, name)
    root.attrib = {
        "viewBox": root.attrib["viewBox"],
        "role": "img",
        "aria-label": title,
        "style": f"max-width: {figure.get_figwidth() * 1.3:.2f}in",
    }
    ET.register_namespace("", "http://www.w3.org/2000/svg")
    return ET.tostring(root, encoding="unicode", short_empty_elements=True)


def _adapt(element: ET.Element, name: str) -> None:
    """One element: identifiers made unique, colours made variables, a mark given its name and tooltip."""
    identifier = element.attrib.pop("id", None)
    mark = read_mark(identifier)
    if mark:
        element.set("class", "mark")
        if mark.name:
            element.set("data-name", mark.name)
        tooltip = ET.Element(f"{_SVG}title")
        tooltip.text = mark.text
        element.insert(0, tooltip)
    elif identifier and element.tag != f"{_SVG}g":
        element.set("id", f"{name}-{identifier}")
    if element.tag == f"{_SVG}path":
        element.set("d", " ".join(element.attrib["d"].split()))
    element.tail = None
    target = element.attrib.pop(_LINK, None)
    if target:
        element.set("href", f"#{name}-{target.removeprefix('#')}")
    for attribute, value in element.attrib.items():
        if attribute in ("style", "fill", "stroke", "clip-path"):
            value = _REFERENCE.sub(rf"url(#{name}-\1)", value)
            value = _FONT.sub("", value)
            value = _COLOUR.sub(lambda match: CSS_VARIABLES.get(match[0], match[0]), value)
            element.set(attribute, value)
