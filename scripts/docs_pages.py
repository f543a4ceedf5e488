"""Pages of the site that are made from the repository's root and from the notebook; a hook of mkdocs.yml."""

from __future__ import annotations

from pathlib import Path

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
NOTEBOOK = "first_hour.ipynb"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add them, with links as they are from docs/."""
    for name, page in PAGES.items():
        text = (ROOT / name).read_text().replace("](docs/", "](")
        for other, its_page in PAGES.items():
            text = text.replace(f"]({other})", f"]({its_page})")
        files.append(File.generated(config, page, content=text))
    files.append(File.generated(config, "notebook.md", content=_notebook(ROOT / "docs" / NOTEBOOK)))
    return files


def _notebook(path: Path) -> str:
    """Its cells, with the outputs that were committed."""
    parts = [f"[The notebook]({NOTEBOOK}), as it ran."]
    for cell in nbformat.read(path, as_version=4).cells:
        parts.append(cell.source if cell.cell_type == "markdown" else f"```python\n{cell.source}\n```")
        text = "".join(output.get("text") or _plain(output) for output in cell.get("outputs", ()))
        if text:
            parts.append(f"```text\n{text.rstrip()}\n```")
        for picture in (output.get("data", {}).get("image/png") for output in cell.get("outputs", ())):
            if picture:
                parts.append(f"![output](data:image/png;base64,{''.join(picture.split())})")
    title, *rest = parts[1:]
    return "\n\n".join([title, parts[0], *rest])


def _plain(output: nbformat.NotebookNode) -> str:
    """What a value looks like in text; nothing of a picture."""
    data = output.get("data", {})
    return "" if "image/png" in data else data.get("text/plain", "") + "\n"
