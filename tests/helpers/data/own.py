"""The data of the guide to data sets of your own: Parquet with two configurations, JSON lines, text files."""

from __future__ import annotations

import json
import random
from pathlib import Path

SPLITS = ("train", "validation", "test")
WORDS = (
    "anna",
    "ben",
    "carl",
    "keeps",
    "the",
    "lamp",
    "ring",
    "red",
    "green",
    "and",
    "asks",
    "who",
    "has",
    "it",
    "now",
)


def write_own_data(folder: Path) -> None:
    """Write ``wiki``, ``news`` and ``notes`` of docs/howto/data.md."""
    from datasets import Dataset

    for config in ("en", "de"):
        for split in SPLITS:
            (folder / "wiki" / config).mkdir(parents=True, exist_ok=True)
            pages = Dataset.from_dict({"text": [_text(f"{config} {split} {i}", 400) for i in range(4)]})
            pages.to_parquet(str(folder / "wiki" / config / f"{split}.parquet"))
    configs = "".join(f"- config_name: {config}\n  data_dir: {config}\n" for config in ("en", "de"))
    (folder / "wiki/README.md").write_text(f"---\nconfigs:\n{configs}---\n")
    (folder / "news").mkdir()
    for split in SPLITS:
        rows = [{"article": _text(f"{split} {i}", 40), "highlights": _text(f"{split} {i}", 8)} for i in range(16)]
        (folder / f"news/{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "notes").mkdir()
    for number in range(10):
        (folder / f"notes/{number}.txt").write_text(_text(str(number), 400))


def _text(seed: str, count: int) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=count))
