"""Properties of every backbone, from its record: a row of a batch is computed as alone, mistakes are named."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from cab import UserError
from tests.helpers.backbones.language_models import VOCABULARY
from tests.helpers.backbones.records import RECORDS

Change = Callable[[Tensor], Tensor]


def results(output: Tensor | tuple[Tensor | None, ...]) -> list[Tensor]:
    return [output] if isinstance(output, Tensor) else [x for x in output if x is not None]


@pytest.mark.parametrize("attention", ["vanilla", "abc", "performer"])
@pytest.mark.parametrize("name", RECORDS)
def test_a_row_does_not_depend_on_the_rest_of_the_batch(name: str, attention: str) -> None:
    """With the padding that the batch gives it."""
    record = RECORDS[name]
    if name == "gpt2" and attention == "performer":
        attention = "local"  # performer has no pattern CS
    backbone, inputs = record.build(name, attention=attention), record.inputs()
    for row in range(3):
        together = results(backbone(**inputs))
        others = {key: torch.cat([x[row : row + 1]] * 2 + [x[:1]]) for key, x in inputs.items()}
        for a, b in zip(together, results(backbone(**others)), strict=True):
            length = min(a.shape[1], b.shape[1])  # frames, whose number is the largest of the batch
            torch.testing.assert_close(b[:1, :length], a[row : row + 1, :length], rtol=1e-4, atol=1e-5)


def full(*shape: int, of: float = 0) -> Change:
    return lambda _: torch.full(shape, of) if isinstance(of, float) else torch.full(shape, of, dtype=torch.long)


def id_too_large(ids: Tensor) -> Tensor:
    return ids.index_fill(1, torch.tensor([2]), VOCABULARY)


def hidden_rows(mask: Tensor) -> Tensor:
    return mask.index_fill(0, torch.tensor([0, 2]), True)


TOKENS: list[tuple[Change, str]] = [
    (lambda ids: ids.repeat(1, 3), r"\(3, \d\d\) is longer than the \d\d learned positions"),
    (lambda ids: ids[:0], r"batch and length of at least 1, got \(0, \d+\)"),
    (lambda ids: ids[0], r"must be \[batch, length\].* got \(\d+,\)"),
    (lambda ids: ids.float(), r"token ids, int64 or int32, got torch.float32 \(3, \d+\)"),
    (id_too_large, r"to 23, the vocabulary has 0 to 22"),
]
MASKS: list[tuple[Change, str]] = [
    (hidden_rows, r"\[3, \d+\] hides every token of rows \[0, 2\]"),
    (lambda mask: mask[:, 1:], r"must be bool \[3, \d+\] .* got torch.bool \[3, \d+\]"),
]
MISTAKES: list[tuple[str, str, Change, str]] = [
    *(("gpt2", "tokens", *mistake) for mistake in TOKENS),
    *(("roberta", "tokens", *mistake) for mistake in TOKENS),
    *(("transformer", place, *mistake) for place in ("source", "target") for mistake in TOKENS),
    *(("gpt2", "padding_mask", *mistake) for mistake in MASKS),
    *(("roberta", "padding_mask", *mistake) for mistake in MASKS),
    *(("transformer", "source_padding_mask", *mistake) for mistake in MASKS),
    ("fastspeech2", "tokens", full(3, 9, of=19), "ids from 19 to 19, the vocabulary has 0 to 18"),
    ("fastspeech2", "padding_mask", torch.ones_like, "length zero"),
    ("fastspeech2", "durations", full(3, 9, of=134), r"\[3, 9\] make 1206 frames, more than the 1200 of max_frames"),
    ("fastspeech2", "pitch", full(3, 8, of=0.0), r"pitch must be \[3, 9\]"),
    ("transformer_tts", "tokens", full(3, 8, of=19), "the vocabulary has 0 to 18"),
    ("transformer_tts", "padding_mask", torch.ones_like, "length zero"),
    ("transformer_tts", "frames", full(3, 9, 5, of=0.0), r"\[3, steps, 6\].*got torch.float32 \[3, 9, 5\]"),
    ("transformer_tts", "frames", full(3, 9, 6, of=0), "floating point"),
    ("transformer_tts", "frame_padding", lambda mask: mask[:, :8], "frame_padding"),
    ("informer", "past", lambda x: x[..., :2], r"must be \[B, N, 3\], .* got \(3, 50, 2\), \(3, 50, 4\), "),
    ("informer", "past", lambda x: x[:0], r"at least 1, got \(0, 50, 3\)"),
    ("informer", "past_time", lambda x: x[..., :3], r"\(3, 50, 3\), \(3, 50, 3\), "),
    ("informer", "past_time", lambda x: x[:, :49], r", \(3, 49, 4\), "),
    ("informer", "known", lambda x: x[:1], r", \(1, \d+, 3\), "),
    ("informer", "decoder_time", lambda x: x[:, :9], r"\[B, K \+ T, 4\], .*, \(3, 9, 4\)"),
    ("pointr", "partial", full(2, 30, 4, of=0.0), r"\[batch, points, 3\].*got \[2, 30, 4\]"),
    ("pointr", "partial", full(0, 30, 3, of=0.0), "not empty"),
    ("pointr", "partial", full(2, 19, 3, of=0.0), "fewer points than first_samples 20"),
    ("sr3", "image", full(3, 3, 8, 8, of=0.0), r"\[batch, 6, 8, 8\].*got \[3, 3, 8, 8\]"),
    ("sr3", "image", full(0, 6, 8, 8, of=0.0), "not empty"),
    ("sr3", "noise_level", full(2, of=0.0), r"noise_level must be \[3\], got \[2\]"),
]


@pytest.mark.parametrize(("name", "place", "change", "message"), MISTAKES)
def test_mistakes_are_named_with_shapes(name: str, place: str, change: Change, message: str) -> None:
    inputs = RECORDS[name].inputs()
    with pytest.raises(UserError, match=message):
        RECORDS[name].build(name)(**{**inputs, place: change(inputs[place])})
