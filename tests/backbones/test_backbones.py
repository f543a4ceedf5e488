"""Properties of every backbone, from its record: a row of a batch is computed as alone, mistakes are named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from cab import UserError
from cab.registry.registries import BACKBONES
from tests.helpers.backbones.language_models import VOCABULARY
from tests.helpers.backbones.records import RECORDS, outputs

Change = Callable[[Tensor], Tensor]


def test_every_backbone_of_the_repository_has_a_record() -> None:
    names = {entry.name for entry in BACKBONES if entry.location.module.startswith("backbones.")}
    assert names == RECORDS.keys(), "add a record to tests/helpers/backbones/records.py"


@pytest.mark.parametrize("attention", ["vanilla", "abc", "performer"])
@pytest.mark.parametrize("name", RECORDS)
def test_a_row_does_not_depend_on_the_rest_of_the_batch(name: str, attention: str) -> None:
    """With the padding that the batch gives it."""
    record = RECORDS[name]
    if record.pattern == "CS" and attention == "performer":
        attention = "local"  # performer has no pattern CS
    backbone, inputs = record.build(name, attention=attention), record.inputs()
    for row in range(3):
        together = outputs(backbone(**inputs))
        others = {key: torch.cat([x[row : row + 1]] * 2 + [x[:1]]) for key, x in inputs.items()}
        for a, b in zip(together, outputs(backbone(**others)), strict=True):
            length = min(a.shape[1], b.shape[1])  # frames, whose number is the largest of the batch
            torch.testing.assert_close(b[:1, :length], a[row : row + 1, :length], rtol=1e-4, atol=1e-5)


READS_FROM_THE_LEFT = ("encoder", "roberta_classifier")
"""They number positions or read a token from the left, so their padding is on the right."""
PADDED: list[tuple[str, str, Any, dict[str, Any]]] = [
    *((name, record.pattern, "vanilla", {}) for name, record in RECORDS.items() if record.hides),
    *((name, "CS", "linear", {"num_layers": 3}) for name in ("gpt2_act", "gpt2_reversible", "gpt2_universal")),
    ("gpt2", "CS", "linear", {"num_layers": 3, "residual": "gtrxl"}),
    *((name, "CS", attention, {}) for name in ("gpt2", "transformer") for attention in ("local", "longshort", "s4d")),
    *(
        (name, "NS", attention, {})
        for name in ("roberta", "transformer")
        for attention in ("local", "performer", "abc")
    ),
    *(("transformer", "CC", attention, {}) for attention in ("abc", "performer")),
    *(
        ("roberta_funnel", "NS", attention, {"num_layers": 5, "other_attention": {"NC": other}})
        for attention, other in (("local", "vanilla"), ("abc", "abc"), ("vanilla", "funnel"))
    ),
    *(("fastspeech2", "NS", attention, {"postnet": False}) for attention in ("local", "abc", "lara", "s4d")),
    ("fastspeech2", "NS", "vanilla", {"postnet": True}),
    *(("transformer_tts", "CS", attention, {}) for attention in ("abc", "local")),
    *(("transformer_tts", pattern, attention, {}) for pattern, attention in (("NS", "lara"), ("CC", "performer"))),
]


def visible(output: Any, masks: list[Tensor]) -> list[Tensor]:
    """The vectors of each output that no mask of its shape hides, be it an input or an output."""
    masks = [*(x for x in outputs(output) if x.dtype == torch.bool), *masks]
    found = []
    for x in outputs(output):
        hidden = [mask for mask in masks if mask.shape == x.shape[:2]]
        if x.is_floating_point():
            found.append(x[~hidden[0]] if hidden else x)
    return found


def poisoned(x: Tensor, mask: Tensor | None) -> Tensor:
    """Numbers at the padding that would be noticed."""
    if mask is None or not x.is_floating_point():
        return x
    return x.masked_fill(mask.view(*mask.shape, *[1] * (x.dim() - 2)), 1e3)


@pytest.mark.parametrize(("name", "pattern", "attention", "options"), PADDED)
def test_a_padded_row_gives_what_it_gives_alone(
    name: str, pattern: str, attention: str, options: dict[str, Any]
) -> None:
    """Outputs and the gradients of all parameters, whatever is at the padding, and on whichever side it is."""
    record = RECORDS[name]
    backbone = record.random(name, pattern, attention, **options)
    inputs = {key: x.double() if x.is_floating_point() else x for key, x in record.inputs().items()}
    for flips in (False,) if name in READS_FROM_THE_LEFT else (False, True):
        masks = {key: inputs[key].flip(1) if flips else inputs[key] for key in record.hides}
        mask_of = {each: masks[key] for key, hidden in record.hides.items() for each in hidden}
        noisy = {key: poisoned(x, mask_of.get(key)) for key, x in inputs.items()}
        together = visible(backbone(**{**noisy, **masks}), [*reversed(masks.values())])
        rows = []
        for row in range(3):
            own = {key: inputs[key][row : row + 1, ~mask[row]] for key, mask in mask_of.items()}
            found = visible(backbone(**own, **dict.fromkeys(masks)), [])
            rows.append([x[0] if x.dim() > y.dim() else x for x, y in zip(found, together, strict=True)])
        alone = [torch.cat(parts) for parts in zip(*rows, strict=True)]
        parameters = list(backbone.parameters())
        sums = [torch.stack([x.sin().sum() for x in found]).sum() for found in (together, alone)]
        gradients = [torch.autograd.grad(x, parameters, materialize_grads=True) for x in sums]
        results = [*together, *gradients[0]], [*alone, *gradients[1]]
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


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
