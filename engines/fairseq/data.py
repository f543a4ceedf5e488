"""Our corpora as fairseq's data: lines of tokens by number and the same dictionary, through `fairseq-preprocess`."""

from __future__ import annotations

from pathlib import Path

from cab import UserError
from cab.files.cache import prepared
from engines.fairseq import environment
from tasks.corpus.tokens import END, NUM_SPECIAL, Corpus

PARTS = {"train": "train", "validation": "valid", "test": "test"}
"""Our parts, and fairseq's names for them."""
VERSION = 1


def fairseq_data(corpus: Corpus) -> Path:
    """The folder that `fairseq-train` reads: every entry has the number that it has in ``corpus``."""
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
    """fairseq's ``dict.txt``: a line ``type count`` for each entry after the special ones, filled up to the size."""
    with path.open("w") as file:
        for entry, count in enumerate(corpus.counts[NUM_SPECIAL:], start=NUM_SPECIAL):
            file.write(f"{entry} {count}\n")
        for number in range(corpus.size - len(corpus.counts)):
            file.write(f"madeupword{number:04d} 0\n")


def write_lines(corpus: Corpus, part: str, path: Path) -> None:
    """Each line of a part as the numbers of its entries; fairseq puts an END after every line, as we do."""
    with path.open("w") as file:
        for chunk in corpus.chunks(part):
            file.write("".join("\n" if entry == END else f"{entry} " for entry in chunk.tolist()))
