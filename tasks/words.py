"""Word-level tokens, for texts published as space-separated words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cab.files.cache import prepared
from tasks.bpe import read_bpe

if TYPE_CHECKING:
    from tokenizers import Tokenizer

WORDS = "words"
"""Value of ``task.tokenizer`` that selects word-level tokens."""
UNKNOWN_WORD = "<unk>"


def words_of(texts: Callable[[], Iterator[str]], *, key: Mapping[str, Any]) -> Tokenizer:
    """Return a tokenizer with an entry for every word of ``texts``, most frequent first; others are ``<unk>``.

    It is cached; ``key`` identifies the texts.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers

    def build(folder: Path) -> None:
        counts = Counter(word for text in texts() for line in text.splitlines() for word in line.split())
        counts.pop(UNKNOWN_WORD, None)
        words = [UNKNOWN_WORD, *(word for word, _ in counts.most_common())]
        vocabulary = {word: number for number, word in enumerate(words)}
        tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN_WORD))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        tokenizer.save(str(folder / "tokenizer.json"))

    return read_bpe(prepared("words", {"texts": dict(key)}, build))
