"""Bundle the records of a folder as the set of another one: ``python -m tools.results.bundle FOLDER OUT``.

OUT/records.jsonl gets the stored content of every record, one per line, sorted by hash and code. Nothing is written if
a record cannot be read.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from cab.errors import UserError
from cab.files.disk import replacing
from cab.records.files import SET, record_paths, set_lines
from cab.records.record import Record


def bundle(folder: Path, out: Path) -> Path:
    """Write the records of a folder as the set of ``out``, and return its path; UserError if one is not valid."""
    paths = record_paths(folder) if folder.is_dir() else []
    if not paths:
        raise UserError(f"{folder} has no records: name the results_dir of finished runs")
    lines = []
    for path in paths:
        text = path.read_text(encoding="utf-8") if path.exists() else set_lines(folder)[path.stem]
        Record.from_text(text, path)  # the stored content is kept, whatever the reader makes of it
        lines.append(json.dumps(json.loads(text), separators=(",", ":")) + "\n")
    out.mkdir(parents=True, exist_ok=True)
    with replacing(out / SET) as temporary:
        temporary.write_text("".join(lines), encoding="utf-8")
    return out / SET


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m tools.results.bundle FOLDER OUT")
    try:
        print(bundle(*map(Path, sys.argv[1:])))
    except UserError as error:
        sys.exit(str(error))
