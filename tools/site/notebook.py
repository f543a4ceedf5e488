"""Execute docs/tutorials/first-hour.ipynb in a temporary folder and store its outputs: `python -m tools.site.notebook`.

Run it after a change of the tables, checks or messages that the notebook shows. It trains for about five CPU minutes.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "tutorials" / "first-hour.ipynb"


def main() -> None:
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(notebook, timeout=None, resources={"metadata": {"path": folder}}).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    nbformat.write(notebook, NOTEBOOK)


if __name__ == "__main__":
    main()
