"""CAB's corpora as fairseq data: lines of token ids with the same dictionary, through `fairseq-preprocess`."""

from __future__ import annotations

from pathlib import Path

from cab import UserError
from cab.files.cache import prepared
from engines.fairseq import environment
from tasks.corpus.tokens import END, NUM_SPECIAL, Corpus

PARTS = {"train": "train", "validation": "valid", "test": "test"}
"""Names of the parts: ours, and fairseq's."""
VERSION = 1


def fairseq_data(corpus: Corpus) -> Path:
    """Return the folder that `fairseq-train` reads, with the token ids of ``corpus``."""
    key = {"corpus": corpus.key, "tokenizer": corpus.tokenizer.to_str(), "version": VERSION}
    return prepared("fairseq-data", key, lambda folder: _preprocess(corpus, folder))


def _preprocess(corpus: Corpus, folder: Path) -> None:
    write_dictionary(corpus, folder / "types.txt")
    for part, name in PARTS.items():
        write_lines(corpus, part, folder / name)
    arguments = ["--only-source", "--destdir", str(folder), "--srcdict", str(folder / "types.txt")]
    for option, name in zip(("--trainpref", "--validpref", "--testpref"), PARTS.values(), strict=True):
        arguments += [option, str(folder / name)]
    try:
        environment.run("fairseq-preprocess", arguments, log=folder / "preprocess.log")
    except RuntimeError as error:
        raise UserError(str(error)) from error
    for name in ("types.txt", *PARTS.values()):
        (folder / name).unlink()


def write_dictionary(corpus: Corpus, path: Path) -> None:
    """Write fairseq's ``dict.txt``: a line ``type count`` per entry after the special ones, padded to the size."""
    with path.open("w") as file:
        for entry, count in enumerate(corpus.counts[NUM_SPECIAL:], start=NUM_SPECIAL):
            file.write(f"{entry} {count}\n")
        for number in range(corpus.size - len(corpus.counts)):
            file.write(f"madeupword{number:04d} 0\n")


def write_lines(corpus: Corpus, part: str, path: Path) -> None:
    """Write each line of a part as token ids; fairseq appends END to every line, as CAB does."""
    with path.open("w") as file:
        for chunk in corpus.chunks(part):
            file.write("".join("\n" if entry == END else f"{entry} " for entry in chunk.tolist()))
