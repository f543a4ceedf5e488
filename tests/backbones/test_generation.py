"""Generation: steps against teacher forcing, searches against slow ones, and what a row may not say."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from backbones.generation import Limits, beam_search, greedy, sample
from backbones.gpt2 import GPT2
from backbones.layers.decoder import DecodingState, TokenDecoder
from backbones.transformer import Transformer
from cab import UserError
from tests.helpers.backbones.language_models import VARIANTS, VOCABULARY, padding, slots, small, tokens

STACKS = [("CS", "abc,local+linear"), ("CC", "linear+abc,vanilla")]
ROTATED = {"name": "vanilla", "positions": "rope", "num_kv_heads": 1}
CAUSAL = ["vanilla", "local", "longshort", "abc", "s4d", "cosformer"]


def gpt2(attention: Any = "vanilla", name: str = "gpt2", **options: object) -> GPT2:
    return small(name, "CS", attention, **options)  # type: ignore[return-value]


def transformer(pattern: str = "CC", attention: str = "vanilla") -> Transformer:
    backbone = small("transformer", pattern, attention)
    assert isinstance(backbone, Transformer)
    return backbone


# --- steps ---------------------------------------------------------------------------------------------------------


def step_through(backbone: TokenDecoder, state: DecodingState, ids: Tensor, first: int) -> Tensor:
    """Logits after tokens ``first - 1`` and later: a prompt in two pieces, then token by token."""
    piece = first // 2
    _, state = backbone.prefill(ids[:, :piece], state)
    logits, state = backbone.prefill(ids[:, piece:first], state)
    steps = [logits]
    for t in range(first, ids.shape[1]):
        logits, state = backbone.step(ids[:, t], state)
        steps.append(logits)
    return torch.stack(steps, dim=1)


@pytest.mark.parametrize(
    ("pattern", "attention"), [("CS", "local"), ("CS", "s4d"), ("CC", "vanilla"), ("CC", "performer"), *STACKS]
)
def test_transformer_steps_are_the_training_form(pattern: str, attention: str) -> None:
    backbone, source, ids = transformer(pattern, attention), tokens(5, 19), tokens(5, 18)
    mask = padding(19)
    with torch.no_grad():
        steps = step_through(backbone, backbone.init_state(source, mask), ids, 3)
        torch.testing.assert_close(steps, backbone(source, ids, mask)[:, 2:])


@pytest.mark.parametrize(
    ("attention", "options"),
    [
        ("gla*2,local+vanilla", {"num_layers": 4}),
        ("flash_gau", {"num_layers": 3, "feed_forward": "none"}),
        *itertools.product(CAUSAL, [{"positions": "sinusoidal"}, {"positions": "learned"}]),
        ("linear", {"num_layers": 3, "residual": "gtrxl"}),
        *(("linear", {"num_layers": 3, "name": name}) for name in VARIANTS if name.startswith("gpt2")),
        *((attention, {"name": "llama"}) for attention in (ROTATED, "gla", "longshort")),
    ],
)
def test_prompts_of_different_lengths(attention: Any, options: dict[str, Any]) -> None:
    """Padding on either side of the prompt: rows go on as if alone."""
    backbone, ids, mask = gpt2(attention, **options), tokens(5, 12), padding(12)
    following = tokens(5, 4)
    with torch.no_grad():
        logits, state = backbone.prefill(ids, backbone.init_state(5), padding_mask=mask)
        together = [logits]
        for t in range(4):
            logits, state = backbone.step(following[:, t], state)
            together.append(logits)
        for row in range(5):
            alone = torch.cat([ids[row, ~mask[row]], following[row]])
            expected = backbone(alone.unsqueeze(0))[0, -5:]
            torch.testing.assert_close(torch.stack([step[row] for step in together]), expected)
    assert torch.equal(state.lengths, (~mask).sum(dim=1) + 4)


def test_the_source_is_projected_once() -> None:
    backbone = transformer()
    projections = [slot.k_proj for slot in slots(backbone) if slot.pattern == "CC"]
    calls: list[int] = []
    for number, projection in enumerate(projections):
        projection.register_forward_hook(lambda *_, number=number: calls.append(number))
    source = tokens(2, 19)
    greedy(backbone, backbone.init_state(source), tokens(2, 1), Limits(9))
    assert calls == [0, 1]


# --- searches ------------------------------------------------------------------------------------------------------


def slow_beam_search(
    backbone: Transformer, source: Tensor, limits: Limits, num_beams: int = 1, length_penalty: float = 1.0
) -> list[int]:
    """One row, hypotheses in lists, the whole prefix anew for each token."""
    beams: list[tuple[float, list[int]]] = [(0.0, [])]
    endings: list[tuple[float, list[int]]] = []
    for length in range(1, limits.max_length + 1):
        candidates = []
        for score, said in beams:
            logits = backbone(source, torch.tensor([[0, *said]]))[0, -1].log_softmax(dim=-1)
            for token, log_probability in enumerate(logits.tolist()):
                if token == limits.end and len(said) < limits.min_length:
                    continue
                n = limits.blocked_ngram
                grams = {tuple(said[i : i + n]) for i in range(len(said) - n + 1)} if n else set()
                if n and tuple([*said, token][-n:]) in grams:
                    continue
                candidates.append((score + log_probability, [*said, token]))
        candidates.sort(key=lambda candidate: -candidate[0])
        for score, said in candidates[:num_beams]:
            if said[-1] == limits.end:
                endings.append((score / length**length_penalty, said))
        if len(endings) >= num_beams:
            break
        beams = [candidate for candidate in candidates if candidate[1][-1] != limits.end][:num_beams]
    else:
        endings += [(score / limits.max_length**length_penalty, said) for score, said in beams]
    return max(endings)[1]


@pytest.mark.parametrize(("pattern", "attention"), [("CS", "s4d"), ("CC", "abc")])
def test_greedy_rows_of_a_batch_are_greedy_rows_alone(pattern: str, attention: str) -> None:
    """Rows end at different tokens, are let go, and the others go on undisturbed."""
    backbone, source, mask = transformer(pattern, attention), tokens(5, 19), padding(19)
    with torch.no_grad():
        free = [slow_beam_search(backbone, source[row : row + 1, ~mask[row]], Limits(12)) for row in range(5)]
        end = max(set(free[0] + free[4]), key=lambda t: sum(t in said[2:] for said in free))
        limits = Limits(12, min_length=3, end=end)
        expected = [slow_beam_search(backbone, source[row : row + 1, ~mask[row]], limits) for row in range(5)]
    output = greedy(backbone, backbone.init_state(source, mask), torch.zeros(5, 1, dtype=torch.long), limits)
    assert output.shape[1] == max(map(len, expected))
    assert len({len(said) for said in expected}) > 1
    for said, row in zip(expected, output.tolist(), strict=True):
        assert row == said + [end] * (len(row) - len(said))
        assert end not in row[:3]


@pytest.mark.parametrize(
    ("attention", "num_beams", "length_penalty", "blocked_ngram", "min_length"),
    [
        ("vanilla", 1, 1.0, None, 0),
        ("vanilla", 3, 1.0, None, 0),
        ("abc", 4, 0.0, 2, 2),
        ("vanilla", 5, 2.5, 3, 4),
        ("vanilla", 3, -1.0, 1, 0),
        ("abc", 2, 4.0, None, 0),
    ],
)
def test_beam_search_is_the_slow_one(
    attention: str, num_beams: int, length_penalty: float, blocked_ngram: int | None, min_length: int
) -> None:
    backbone, source, mask = transformer("CC", attention), tokens(3, 19), padding(19)[::2]
    start = torch.zeros(3, 1, dtype=torch.long)
    with torch.no_grad():
        backbone.output.weight *= 2.0  # sharper, so that rows end at different lengths
        free = greedy(backbone, backbone.init_state(source, mask), start, Limits(8))
        end = int(free[:, 2:].flatten().bincount().argmax())
        limits = Limits(10, min_length=min_length, end=end, blocked_ngram=blocked_ngram)
        output = beam_search(
            backbone,
            backbone.init_state(source, mask),
            start,
            limits,
            num_beams=num_beams,
            length_penalty=length_penalty,
        )
        for row in range(3):
            alone = source[row : row + 1, ~mask[row]]
            said = slow_beam_search(backbone, alone, limits, num_beams, length_penalty)
            assert output[row].tolist() == said + [end] * (output.shape[1] - len(said))


# --- samples -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.6, 1.0), (1.7, 0.75), (1.0, 0.4)])
def test_samples_have_the_nucleus_distribution(temperature: float, top_p: float) -> None:
    """Frequencies of the second token of 20,000 rows against the probabilities, by a chi-square statistic."""
    backbone, rows = gpt2(), 20_000
    prompt = tokens(1, 6)
    with torch.no_grad():
        backbone.final_norm.weight.mul_(0.3)
        probabilities = (backbone(prompt)[0, -1] / temperature).softmax(dim=-1)
        order = probabilities.argsort(descending=True).tolist()
        nucleus: list[int] = []
        while sum(probabilities[token].item() for token in nucleus) < top_p - 1e-12 and len(nucleus) < len(order):
            nucleus.append(order[len(nucleus)])
        expected = torch.zeros(VOCABULARY, dtype=torch.float64)
        expected[nucleus] = probabilities[nucleus] / probabilities[nucleus].sum()
    _, state = backbone.prefill(prompt[:, :-1], backbone.init_state(1))
    many = state.select(torch.zeros(rows, dtype=torch.long))
    drawn = sample(backbone, many, prompt[:, -1:].expand(rows, -1), Limits(1), temperature=temperature, top_p=top_p)
    counts = drawn.flatten().bincount(minlength=VOCABULARY).double()
    assert counts[expected == 0].sum() == 0
    kept = expected > 0
    statistic = ((counts - rows * expected).square()[kept] / (rows * expected[kept])).sum()
    freedom = int(kept.sum()) - 1
    assert statistic < freedom + 5 * math.sqrt(2 * freedom) + 5
    assert 1 < len(nucleus) <= VOCABULARY


# --- what is refused -----------------------------------------------------------------------------------------------


MISTAKES: list[tuple[Callable[[GPT2, DecodingState, Tensor], object], str]] = [
    (lambda *_: Limits(0), "max_length of at least 1 and min_length from 0"),
    (lambda *_: Limits(3, min_length=4), "max_length of at least 1 and min_length from 0"),
    (lambda *_: Limits(3, min_length=-1), "max_length of at least 1 and min_length from 0"),
    (lambda *_: Limits(3, blocked_ngram=0), "blocked_ngram must be at least 1, got 0"),
    (lambda net, state, ids: sample(net, state, ids, Limits(2), temperature=0.0), r"got 0\.0 and 1\.0"),
    (lambda net, state, ids: sample(net, state, ids, Limits(2), top_p=1.5), r"got 1\.0 and 1\.5"),
    (lambda net, state, ids: beam_search(net, state, ids, Limits(2), num_beams=0), "num_beams must be at least 1"),
    (lambda net, state, ids: greedy(net, state, ids, Limits(8)), r"tokens \(2, 1\) after 10 earlier .* 10 learned"),
    (lambda net, state, _: net.prefill(tokens(2, 11), state), r"tokens \(2, 11\) after 0 earlier .* 10 learned"),
    (lambda net, state, _: net.step(tokens(2, 1)[:, 0], net.prefill(tokens(2, 10), state)[1]), "after 10 earlier ones"),
    (lambda net, state, _: net.step(tokens(3, 1)[:, 0], state), r"each of the state's 2 rows, got \(3,\)"),
    (lambda net, state, ids: net.prefill(ids, state, padding_mask=ids >= 0), r"every token of rows \[0, 1\]"),
    (lambda net, *_: net.init_state(0), "batch_size must be at least 1, got 0"),
    (lambda net, state, ids: net.prefill(ids + VOCABULARY, state), "vocabulary has 0 to 22"),
]


@pytest.mark.parametrize(("call", "message"), MISTAKES)
def test_mistakes(call: Callable[[GPT2, DecodingState, Tensor], object], message: str) -> None:
    backbone, prompt = gpt2(positions="learned", max_length=10), tokens(2, 4)
    state = backbone.init_state(2)
    assert greedy(backbone, state, prompt, Limits(7)).shape == (2, 7)
    with pytest.raises(UserError, match=message):
        call(backbone, state, prompt)
