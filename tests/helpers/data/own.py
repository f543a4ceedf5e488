"""The data of the guide to data sets of your own: texts, a series, clouds, photos and a voice."""

import json
import random
from pathlib import Path

import numpy as np

SPLITS = ("train", "validation", "test")
WORDS = "anna ben carl keeps the lamp ring red green and asks who has it now"


def write_own_data(folder: Path) -> None:
    """Write what docs/howto/data.md names."""
    from datasets import Dataset

    write_own_folders(folder)
    hours = [f"2026-01-{day:02d} {hour:02d}:00" for day in range(1, 29) for hour in range(24)]
    rows = [f"{hour},{number % 24},{number % 7}" for number, hour in enumerate(hours)]
    (folder / "power.csv").write_text("\n".join(["date,load,heat", *rows]))
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


def write_own_folders(folder: Path) -> None:
    """Write ``shapes``, ``photos`` and ``voice``: ten clouds, images and clips."""
    import soundfile
    from PIL import Image

    for name in ("shapes/complete", "shapes/partial", "photos", "voice/wavs"):
        (folder / name).mkdir(parents=True)
    rng = np.random.default_rng(1)
    for number in range(10):
        cloud = rng.normal(size=(300, 3))
        np.save(folder / f"shapes/complete/{number}.npy", cloud)
        np.save(folder / f"shapes/partial/{number}.npy", cloud[cloud[:, 0] > 0])
        Image.fromarray(rng.integers(256, size=(40, 50, 3), dtype=np.uint8)).save(folder / f"photos/{number}.png")
        wave = 0.1 * np.sin(np.arange(8000 + 100 * number) * (0.03 + 0.001 * number))
        soundfile.write(folder / f"voice/wavs/clip{number}.wav", wave, 22050)
    lines = [f"clip{number}|Say it {number}.|Say it again." for number in range(10)]
    (folder / "voice/metadata.csv").write_text("\n".join(lines))


def _text(seed: str, count: int) -> str:
    return " ".join(random.Random(seed).choices(WORDS.split(), k=count))
