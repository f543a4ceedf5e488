"""Conversion of matplotlib figures to inline SVG with real text, the page's colors and labeled marks.

Removes matplotlib's style sheet, metadata and identifiers, replaces colors of the palette by CSS variables of the page,
and labels marks (:func:`cab.reports.figures.mark`) with their attention.
"""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

from cab.reports.figures import read_mark, style
from cab.reports.palette import CSS_VARIABLES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SVG = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"
_REFERENCE = re.compile(r"url\(#([^)]+)\)")
_FONT = re.compile(r" ?font-family: [^;]*;?")
_COLOR = re.compile(r"#[0-9a-f]{6}")


def inline_svg(figure: Figure, *, name: str, title: str) -> str:
    """Convert ``figure`` to an ``<svg>`` element.

    Args:
        figure: the figure to convert.
        name: prefix of the identifiers inside, unique on the page.
        title: text for screen readers; the values are in a table next to the figure.
    """
    buffer = io.StringIO()
    with style():
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    # safe: matplotlib escapes the names from results in its output
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
    """Adapt one element: unique identifiers, CSS variables as colors, name and tooltip of a mark."""
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
            value = _COLOR.sub(lambda match: CSS_VARIABLES.get(match[0], match[0]), value)
            element.set(attribute, value)
