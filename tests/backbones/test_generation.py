"""Generation: steps against teacher forcing, searches against slow ones, and what a row may not say."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from backbones.generation import Limits, beam_search, greedy, sample
from cab import UserError
from cab.registry.registries import BACKBONES
from tests.helpers.backbones.records import RECORDS, VOCABULARY, padding, small, tokens


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "pattern", "attention"),
    [
        *((name, "", "vanilla") for name in RECORDS if hasattr(BACKBONES.get(name).cls, "prefill")),
        *(("transformer", "CS", attention) for attention in ("s4d", "abc,local+linear")),
        *(("transformer", "CC", attention) for attention in ("performer", "linear+abc,vanilla")),
    ],
)
def test_steps_are_the_training_form(name, pattern, attention):
    """A prompt in two pieces, then token by token: no output depends on a later token; a source is projected once."""
    backbone, inputs = small(name, pattern, attention), RECORDS[name].inputs()
    source = [inputs[key] for key in ("source", "source_padding_mask") if key in inputs]
    ids = inputs["target" if source else "tokens"]
    calls: list[str] = []
    cross = [path for path, _ in backbone.named_modules() if "cross_attention" in path and path.endswith("k_proj")]
    for path in cross:
        backbone.get_submodule(path).register_forward_hook(lambda *_, path=path: calls.append(path))
    _, state = backbone.prefill(ids[:, :1], backbone.init_state(*source or [len(ids)]))
    logits, state = backbone.prefill(ids[:, 1:3], state)
    steps = [logits]
    for token in ids[:, 3:].unbind(1):
        logits, state = backbone.step(token, state)
        steps.append(logits)
    assert sorted(calls) == sorted(cross)
    torch.testing.assert_close(torch.stack(steps, dim=1), backbone(*source[:1], ids, *source[1:])[:, 2:])


@pytest.mark.parametrize(
    ("attention", "name", "options"),
    [
        ("gla*2,local+vanilla", "gpt2", {"num_layers": 4}),
        ("flash_gau", "gpt2", {"num_layers": 3, "feed_forward": "none", "positions": "none"}),
        ("cosformer", "gpt2", {"positions": "sinusoidal"}),
        ("abc", "gpt2", {}),
        ("linear", "gpt2", {"num_layers": 3, "residual": "gtrxl"}),
        *(("linear", name, {"num_layers": 3}) for name in ("gpt2_act", "gpt2_reversible", "gpt2_universal")),
        ({"name": "vanilla", "positions": "rope", "num_kv_heads": 1}, "llama", {}),
        ("longshort", "llama", {"depth_block": 3}),
    ],
)
def test_prompts_of_different_lengths(attention, name, options):
    """Padding on either side of the prompt: rows go on as if alone."""
    backbone, ids, mask, following = small(name, "CS", attention, **options), tokens(5, 12), padding(12), tokens(5, 4)
    with torch.no_grad():
        logits, state = backbone.prefill(ids, backbone.init_state(5), padding_mask=mask)
        together = [logits]
        for t in range(4):
            logits, state = backbone.step(following[:, t], state)
            together.append(logits)
        for row in range(5):
            alone = torch.cat([ids[row, ~mask[row]], following[row]])
            torch.testing.assert_close(torch.stack([step[row] for step in together]), backbone(alone[None])[0, -5:])
    assert torch.equal(state.lengths, (~mask).sum(dim=1) + 4)


def slow_beam_search(backbone: Any, source: Tensor, limits: Limits, num_beams: int, length_penalty: float) -> list[int]:
    """One row, hypotheses in lists, the whole prefix anew for each token."""
    beams, endings = [(0.0, list[int]())], list[tuple[float, list[int]]]()
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


@pytest.mark.parametrize(
    ("attention", "num_beams", "length_penalty", "blocked_ngram", "min_length"),
    [("vanilla", 1, 1.0, None, 3), ("abc", 4, 0.0, 2, 2), ("vanilla", 5, 2.5, 3, 4), ("vanilla", 3, -1.0, 1, 0)],
)
def test_beam_search_is_the_slow_one(attention, num_beams, length_penalty, blocked_ngram, min_length):
    """Rows end at different tokens, and the others go on undisturbed; greedy search is that of one beam."""
    backbone, source, mask = small("transformer", "CC", attention), tokens(3, 19), padding(19)[::2]
    start = torch.zeros(3, 1, dtype=torch.long)
    with torch.no_grad():
        backbone.output.weight *= 2.0  # sharper, so that rows end at different lengths
        free = greedy(backbone, backbone.init_state(source, mask), start, Limits(8))
        end = int(free[:, 2:].flatten().bincount().argmax())
        limits = Limits(10, min_length=min_length, end=end, blocked_ngram=blocked_ngram)
        sizes = {"num_beams": num_beams, "length_penalty": length_penalty}
        found = [beam_search(backbone, backbone.init_state(source, mask), start, limits, **sizes)]
        if num_beams == 1:
            found.append(greedy(backbone, backbone.init_state(source, mask), start, limits))
        for row in range(3):
            said = slow_beam_search(backbone, source[row : row + 1, ~mask[row]], limits, *sizes.values())
            for output in found:
                assert output[row].tolist() == said + [end] * (output.shape[1] - len(said))


@pytest.mark.parametrize(("temperature", "top_p"), [(0.6, 1.0), (1.7, 0.75)])
def test_samples_have_the_nucleus_distribution(temperature, top_p):
    """Frequencies of the second token of 20,000 rows against the probabilities, by a chi-square statistic."""
    backbone, rows = small("gpt2"), 20_000
    prompt = tokens(1, 6)
    with torch.no_grad():
        backbone.final_norm.weight.mul_(0.3)
        probabilities = (backbone(prompt)[0, -1] / temperature).softmax(dim=-1)
        order = probabilities.argsort(descending=True).tolist()
        before = itertools.accumulate((probabilities[token].item() for token in order), initial=0.0)
        nucleus = [token for token, likelier in zip(order, before, strict=False) if likelier < top_p - 1e-12]
        expected = torch.zeros(VOCABULARY, dtype=torch.float64)
        expected[nucleus] = probabilities[nucleus] / probabilities[nucleus].sum()
    _, state = backbone.prefill(prompt[:, :-1], backbone.init_state(1))
    many = state.select(torch.zeros(rows, dtype=torch.long))
    drawn = sample(backbone, many, prompt[:, -1:].expand(rows, -1), Limits(1), temperature=temperature, top_p=top_p)
    counts = drawn.flatten().bincount(minlength=VOCABULARY).double()
    assert counts[expected == 0].sum() == 0
    statistic = ((counts - rows * expected).square() / (rows * expected))[nucleus].sum()
    freedom = len(nucleus) - 1
    assert statistic < freedom + 5 * math.sqrt(2 * freedom) + 5
    assert 1 < len(nucleus) <= VOCABULARY


MISTAKES = [
    (lambda *_: Limits(3, min_length=4), "max_length of at least 1 and min_length from 0"),
    (lambda *_: Limits(3, blocked_ngram=0), "blocked_ngram"),
    (lambda net, state, ids: sample(net, state, ids, Limits(2), temperature=0.0), r"got 0\.0 and 1\.0"),
    (lambda net, state, ids: beam_search(net, state, ids, Limits(2), num_beams=0), "num_beams"),
    (lambda net, state, ids: greedy(net, state, ids, Limits(18)), r"tokens \(2, 1\) after 20 earlier .* 20 learned"),
    (lambda net, state, _: net.prefill(tokens(2, 21), state), r"tokens \(2, 21\) after 0 earlier .* 20 learned"),
    (lambda net, state, _: net.step(tokens(3, 1)[:, 0], state), r"each of the state's 2 rows, got \(3,\)"),
    (lambda net, state, ids: net.prefill(ids, state, padding_mask=ids >= 0), r"every token of rows \[0, 1\]"),
    (lambda net, *_: net.init_state(0), "batch_size must be at least 1, got 0"),
]


@pytest.mark.parametrize(("call", "message"), MISTAKES)
def test_mistakes(call, message):
    backbone, prompt = small("gpt2"), tokens(2, 4)
    state = backbone.init_state(2)
    assert greedy(backbone, state, prompt, Limits(17)).shape == (2, 17)
    with pytest.raises(UserError, match=message):
        call(backbone, state, prompt)
