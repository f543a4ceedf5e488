"""Tokenizers of the text tasks: published, trained on the training split, or a file of the user."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cab import UserError
from cab.errors import first_line
from cab.files.cache import prepared
from cab.files.disk import user_path
from tasks.files import find_data

if TYPE_CHECKING:
    from tokenizers import Tokenizer

log = logging.getLogger(__name__)

Texts = Callable[[], Iterator[str]]
WORD_TOKENS = "words"
"""Value of ``task.tokenizer`` that selects word-level tokens."""
UNKNOWN_WORD = "<unk>"
SAMPLE = 100_000
"""Characters of the training texts that are encoded and decoded to find what a tokenizer loses."""
LARGEST_ID = 2**24
"""Largest plausible id of a token."""
PUBLISHED_TOKENIZERS = {"gpt2": ("gpt2_bpe", "vocab.json"), "bart": ("bart_bpe", "tokenizer.json")}
"""Values of ``task.tokenizer`` that select a published tokenizer: its data set, and a file in the folder of that."""


def tokenizer_data(name: str | None) -> tuple[str, ...]:
    """Return the name of the data set with the published tokenizer ``name``, or nothing for any other."""
    return PUBLISHED_TOKENIZERS[name][:1] if name in PUBLISHED_TOKENIZERS else ()


def tokenizer_path(name: str | None, data_root: Path | None) -> str | None:
    """Return the folder of the published tokenizer ``name`` below ``data_root``, or ``name`` for any other."""
    if name not in PUBLISHED_TOKENIZERS:
        return name
    data_set, file = PUBLISHED_TOKENIZERS[name]
    instead = "task.tokenizer=null, which trains a tokenizer and is not comparable with published results"
    return str(find_data(data_set, data_root, file, instead=instead).parent)


def find_tokenizer(
    path: str | None, texts: Texts, *, vocab_size: int, special_tokens: Sequence[str] = (), key: Mapping[str, Any]
) -> Tokenizer:
    """Return the tokenizer at ``path``, of :func:`words_of` for ``words``, or of :func:`trained_bpe` without a path.

    Text that a file of a tokenizer loses is named (:func:`warn_of_lost_text`).
    """
    if path is None:
        return trained_bpe(texts, vocab_size=vocab_size, special_tokens=special_tokens, key=key)
    if path == WORD_TOKENS:
        return words_of(texts, key=key)
    tokenizer = read_bpe(path)
    warn_of_lost_text(tokenizer, texts(), path)
    return tokenizer


def warn_of_lost_text(tokenizer: Tokenizer, texts: Iterable[str], name: str) -> None:
    """Encode and decode a sample of ``texts``, and warn about the share of characters that do not come back.

    They are unknown, changed by a normalizer or left out. White space is not compared.
    """
    model = json.loads(tokenizer.to_str())["model"]
    number, unknown = model.get("unk_id"), model.get("unk_token") or ""
    if number is not None:
        unknown = tokenizer.id_to_token(number) or ""
    elif unknown:
        number = tokenizer.token_to_id(unknown)
    lost, total = Counter[str](), 0
    for text in texts:
        for line in text[: SAMPLE - total].split("\n"):
            ids = tokenizer.encode(line, add_special_tokens=False).ids
            decoded = Counter(tokenizer.decode([i for i in ids if i != number], skip_special_tokens=False))
            if unknown:  # as text of its own, such as <unk> in WikiText
                decoded += Counter(unknown * min(ids.count(number), line.count(unknown)))
            characters = Counter("".join(line.split()))
            lost += characters - decoded
            total += characters.total()
        if total >= SAMPLE:
            break
    if lost:
        examples = " ".join(character for character, _ in lost.most_common(5))
        log.warning(
            "%s: %.2g%% of the characters of the training text do not come back from the tokenizer (unknown, "
            "normalized or left out), such as %s",
            name,
            100.0 * lost.total() / total,
            examples,
        )


def trained_bpe(texts: Texts, *, vocab_size: int, special_tokens: Sequence[str], key: Mapping[str, Any]) -> Tokenizer:
    """Return a byte-level BPE with ``vocab_size`` entries trained on ``texts``, from the cache if available.

    Every string can be encoded (all 256 bytes are in the vocabulary) and decodes to itself.

    Args:
        texts: returns the training texts one at a time; only called to train.
        special_tokens: receive the ids 0, 1, ... in this order.
        key: identifies the texts, for example by the checksums of their files.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    least = 256 + len(special_tokens)
    if vocab_size < least:
        raise UserError(f"vocab_size must be at least {least} (256 bytes and {len(special_tokens)} special tokens)")

    def build(folder: Path) -> None:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=list(special_tokens),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts(), trainer)
        tokenizer.save(str(folder / "tokenizer.json"))

    options = {"vocab_size": vocab_size, "special_tokens": list(special_tokens), "texts": dict(key)}
    return read_bpe(prepared("bpe", options, build))


def read_bpe(source: str | Path) -> Tokenizer:
    """Read a tokenizer from tokenizer.json, a folder with it, or a folder with GPT-2's vocab.json and merges.txt.

    Truncation, padding and random merges are switched off.
    """
    path = user_path(str(source))
    tokenizer = _read_tokenizer(path)
    numbers = sorted(tokenizer.get_vocab().values())
    if not numbers or numbers[0] < 0 or numbers[-1] > LARGEST_ID or len(set(numbers)) < len(numbers):
        about = f"{len(numbers)} entries with {len(set(numbers))} ids up to {numbers[-1] if numbers else 0:,}"
        raise UserError(f"{path} has {about}: every entry needs an id of its own, at most {LARGEST_ID:,}")
    switch_off(tokenizer, path)
    return tokenizer


def vocabulary_size(tokenizer: Tokenizer) -> int:
    """Return the largest id plus 1, which is more than the number of entries if the ids have gaps."""
    return 1 + max(tokenizer.get_vocab().values())


def switch_off(tokenizer: Tokenizer, path: Path) -> None:
    """Switch off truncation, padding and random merges, with a warning."""
    content = json.loads(tokenizer.to_str())
    model, off = content["model"], [name for name in ("truncation", "padding") if content.get(name)]
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if model.get("dropout"):
        tokenizer.model.dropout = None
        off.append("dropout")
    if off:
        log.warning("%s: %s switched off, which would change the texts", path, " and ".join(off))


def _read_tokenizer(path: Path) -> Tokenizer:
    from tokenizers import ByteLevelBPETokenizer, Tokenizer

    whole = path / "tokenizer.json" if path.is_dir() else path
    vocabulary, merges = path / "vocab.json", path / "merges.txt"
    try:
        if whole.is_file():
            return Tokenizer.from_file(str(whole))
        if vocabulary.is_file() and merges.is_file():
            return ByteLevelBPETokenizer.from_file(str(vocabulary), str(merges))._tokenizer
    except Exception as error:  # the library raises bare Exception
        raise UserError(f"{path} is not a tokenizer that can be read ({first_line(error)})") from None
    raise UserError(f"no tokenizer at {path}: give tokenizer.json, or a folder with vocab.json and merges.txt")


def words_of(texts: Texts, *, key: Mapping[str, Any]) -> Tokenizer:
    """Return a tokenizer with an entry for every word of ``texts``, most frequent first; others are ``<unk>``.

    It is cached; ``key`` identifies the texts.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers

    def build(folder: Path) -> None:
        counts = Counter(word for text in texts() for word in text.split())
        counts.pop(UNKNOWN_WORD, None)
        words = [UNKNOWN_WORD, *(word for word, _ in counts.most_common())]
        vocabulary = {word: number for number, word in enumerate(words)}
        tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN_WORD))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        tokenizer.save(str(folder / "tokenizer.json"))

    return read_bpe(prepared("words", {"texts": dict(key)}, build))
