"""The files of the records in a folder: one per run, or one line per run in the file of a finished set."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Mapping
from pathlib import Path

from cab.errors import UserError, first_line

log = logging.getLogger(__name__)

ROOT = Path(__file__).resolve().parents[2]
"""Folder of the repository, or of the installed packages."""
PAPER_DIR = ROOT / "results" / "paper"
"""Tables of the paper, with their sources."""
SET = "records.jsonl"
"""File with all records of a folder, one per line."""
REFERENCE_DIRS = tuple(PAPER_DIR.with_name(name) for name in ("core", "mini"))
"""Bundled reference results of the suite: its core cells, and all cells."""
COMMITTED_DIRS = (*REFERENCE_DIRS, *map(PAPER_DIR.with_name, ("cosformer_kernels", "reproduced")))
"""All folders of records in this repository."""


def record_path(results_dir: Path, digest: str) -> Path:
    """Return the path of the record ``digest``; the folder of the same name has its logs, checkpoints and plots."""
    return results_dir / f"{digest}.json"


def weights_path(results_dir: Path, digest: str) -> Path:
    """Return the path of the evaluated weights of a finished run: a state dict, to load with ``torch.load``."""
    return results_dir / digest / "weights.pt"


def kept_weights(result: Path) -> Path:
    """Return the path of the weights of a record; UserError if they were not kept."""
    path = weights_path(result.parent, result.stem)
    if not path.is_file():
        raise UserError(f"{result} has no weights at {path}; run the cell again with force=true")
    return path


def record_paths(folder: Path) -> list[Path]:
    """Return the paths of the records in a folder, sorted."""
    names = {path.stem for path in folder.glob("*.json")} | set_lines(folder).keys()
    return [record_path(folder, name) for name in sorted(names)]


def paths_of_hash(folder: Path, digest: str) -> list[Path]:
    """Return the paths of the records with a hash; none in a folder that cannot exist.

    A second one with the same configuration, but other code of the attention, is ``<hash>-<code>.json``.
    """
    try:
        first = [digest] if record_path(folder, digest).exists() else []
        others = _coded_names(folder, folder.stat().st_mtime_ns)
        names = dict.fromkeys([*first, *others, *set_lines(folder)])
    except (OSError, ValueError):
        return []
    return [record_path(folder, name) for name in names if name.partition("-")[0] == digest]


@functools.lru_cache(maxsize=8)
def _coded_names(folder: Path, _changed: int) -> list[str]:  # read again when the folder has changed
    return sorted(path.stem for path in folder.glob("*-*.json"))


def set_lines(folder: Path) -> Mapping[str, str]:
    """Return the lines of the set in a folder by the names of their records; empty without a set."""
    path = folder / SET
    try:
        return _lines_of(path, path.stat().st_mtime_ns)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {first_line(error)}") from None


@functools.lru_cache(maxsize=8)
def _lines_of(path: Path, _changed: int) -> dict[str, str]:
    """Return the lines of a set by the hash in each, or by its number; read again when the file has changed."""
    lines, seen = dict[str, str](), dict[str, int]()
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        if not line.strip():
            continue
        if seen.setdefault(line, number) != number:
            log.warning("%s, line %d: the record of line %d again, which counts once", path, number, seen[line])
            continue
        found = re.search(r'"hash": ?"([0-9a-f]{16})"', line)
        name = found[1] if found else f"line {number}"
        if name in lines:  # the same configuration with other code
            code = re.search(r'"attention_code": ?"([0-9a-f]{8})', line)
            name = f"{name}-{code[1] if code else number}"
        lines[name] = line
    return lines
