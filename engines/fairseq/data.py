"""CAB's data as fairseq data, with the same token ids: corpora through `fairseq-preprocess`, pairs as translations."""

from __future__ import annotations

from pathlib import Path

from cab import UserError
from cab.files.cache import prepared
from engines.fairseq import environment
from tasks.bpe import vocabulary_size
from tasks.corpus.tokens import BEGIN, END, NUM_SPECIAL, PAD, Corpus
from tasks.lm.task import LM
from tasks.mlm.task import MLM
from tasks.sum.data import SPECIAL_TOKENS, special_tokens
from tasks.sum.task import Sum

FAIRSEQ_SPLITS = {"train": "train", "validation": "valid", "val": "valid", "test": "test"}
"""Names of the parts: ours, and fairseq's."""
FILES_VERSION = 1  # of the written files; increase when they change


def fairseq_data(task: LM | MLM | Sum) -> Path:
    """Return the folder that `fairseq-train` reads, with the token ids of the task.

    Raises:
        UserError: the special tokens of a tokenizer have other ids than those of fairseq.
    """
    if isinstance(task, Sum):
        if special_tokens(task.bpe) != (BEGIN, PAD, END):
            raise UserError(
                f"engine=fairseq needs a tokenizer whose tokens {', '.join(SPECIAL_TOKENS[:3])} are entries 0, 1 and "
                f"2, got {special_tokens(task.bpe)}; use engine=torch"
            )
        names = {part: pairs.texts.parent.name for part, pairs in task.splits.items()}  # of the cache: their hashes
        return prepared(
            "fairseq-data", {"pairs": names, "version": FILES_VERSION}, lambda folder: _write_pairs(task, folder)
        )
    corpus = task.corpus
    key = {"corpus": corpus.key, "tokenizer": corpus.tokenizer.to_str(), "version": FILES_VERSION}
    return prepared("fairseq-data", key, lambda folder: _preprocess(corpus, folder))


def _write_pairs(task: Sum, folder: Path) -> None:
    write_dictionaries(task, folder)
    for part, pairs in task.splits.items():
        command = ["-P", "-m", "cab_fairseq.pairs", str(pairs.texts.parent), str(folder / FAIRSEQ_SPLITS[part])]
        environment.run("python", command, log=folder / "pairs.log")


def write_dictionaries(task: Sum, folder: Path) -> None:
    """Write the dictionaries of documents and summaries, which are equal."""
    lines = "".join(f"{entry} 1\n" for entry in range(NUM_SPECIAL, vocabulary_size(task.bpe)))
    for language in ("source", "target"):
        (folder / f"dict.{language}.txt").write_text(lines)


def _preprocess(corpus: Corpus, folder: Path) -> None:
    write_dictionary(corpus, folder / "types.txt")
    parts = {part: FAIRSEQ_SPLITS[part] for part in corpus.files}
    for part, name in parts.items():
        write_lines(corpus, part, folder / name)
    arguments = ["--only-source", "--destdir", str(folder), "--srcdict", str(folder / "types.txt")]
    for option, name in zip(("--trainpref", "--validpref", "--testpref"), parts.values(), strict=True):
        arguments += [option, str(folder / name)]
    try:
        environment.run("fairseq-preprocess", arguments, log=folder / "preprocess.log")
    except RuntimeError as error:
        raise UserError(str(error)) from error
    for name in ("types.txt", *parts.values()):
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
