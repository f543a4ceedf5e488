"""Packed sequences: each gives what it gives alone, in groups that contain little padding."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from attentions.softmax import VanillaAttention
from cab import Pattern, UserError
from cab.attention import Borders, _groups
from cab.padding import PaddingMasks
from cab.training import auxiliary_loss

WIDTH = 8


def cumulative(*lengths: int) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0)


def softmax(pattern: str) -> VanillaAttention:
    return VanillaAttention(pattern=pattern, embed_dim=WIDTH, num_heads=2).double()


@pytest.mark.parametrize("pattern", list(Pattern))
def test_each_sequence_gives_what_it_gives_alone(pattern: Pattern) -> None:
    module = softmax(pattern)
    targets, sources = cumulative(300, 0, 1, 37, 4), cumulative(2, 5, 90, 1, 260)
    query = torch.randn(int(targets[-1]), WIDTH, dtype=torch.double, requires_grad=True)
    source = torch.randn(int(sources[-1]), WIDTH, dtype=torch.double, requires_grad=True)
    more = (source, source) if pattern.is_cross else ()
    lengths = {"key_cu_seqlens": sources} if pattern.is_cross else {}
    output = module.forward_packed(query, *more, query_cu_seqlens=targets, **lengths)
    alone = []
    for n in range(5):
        tokens = query[None, targets[n] : targets[n + 1]]
        keys = source[None, sources[n] : sources[n + 1]]
        if tokens.shape[1]:
            alone.append(module(tokens, keys, keys)[0] if pattern.is_cross else module(tokens)[0])
    torch.testing.assert_close(output, torch.cat(alone))
    weights = torch.randn_like(output)
    inputs = [query, *more[:1], *module.parameters()]
    packed, single = (torch.autograd.grad((x * weights).sum(), inputs) for x in (output, torch.cat(alone)))
    torch.testing.assert_close(packed, single)


def test_packed_prompts_leave_the_states_of_each_prompt_alone() -> None:
    module = softmax("CS")
    prompts = cumulative(3, 0, 11)
    query = torch.randn(14, WIDTH, dtype=torch.double)
    outputs, state = module.prefill_packed(query, module.init_state(3), query_cu_seqlens=prompts)
    token = torch.randn(3, WIDTH, dtype=torch.double)
    following, _ = module.step(token, state)
    for n in range(3):
        prompt = query[None, prompts[n] : prompts[n + 1]]
        alone = module.init_state(1)
        if prompt.shape[1]:
            expected, alone = module.prefill(prompt, alone)
            torch.testing.assert_close(outputs[prompts[n] : prompts[n + 1]], expected[0])
        torch.testing.assert_close(following[n : n + 1], module.step(token[n : n + 1], alone)[0])


class WithLoss(VanillaAttention):
    """Adds the mean of the queries as its loss."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding: PaddingMasks) -> Tensor:
        self.add_loss(query.mean((1, 3)), padding)
        return super().attend(query, key, value, padding)


def test_the_loss_is_that_of_the_sequences_weighted_by_their_tokens() -> None:
    module = WithLoss(pattern="NS", embed_dim=WIDTH, num_heads=2).double().train()
    query, ends = torch.randn(342, WIDTH, dtype=torch.double), cumulative(300, 37, 5)
    module.forward_packed(query, query_cu_seqlens=ends)
    packed, expected = auxiliary_loss(module), 0.0
    for start, end in pairwise(ends.tolist()):
        module(query[None, start:end])
        expected = expected + auxiliary_loss(module) * (end - start) / 342
    torch.testing.assert_close(packed, expected)


def test_no_targets_at_all() -> None:
    assert softmax("NS").forward_packed(torch.empty(0, WIDTH), query_cu_seqlens=cumulative(0, 0)).shape == (0, WIDTH)


def test_groups_contain_little_padding() -> None:
    lengths = [512, 500, 490, 90, 80, 7, 3, 0]
    borders = [Borders((0, n), (0, 0)) for n in lengths]
    groups = [[item.query[1] for item in group] for group in _groups(borders)]
    assert groups == [[512, 500, 490], [90, 80, 7], [3]]


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        (torch.tensor([0, 3, 2, 5]), "rise from 0 to the number of tokens, 5, got"),
        (torch.tensor([0, 4]), "rise from 0 to the number of tokens, 5, got"),
        (torch.tensor([1, 5]), "rise from 0 to the number of tokens, 5, got"),
        (torch.tensor([0.0, 5.0]), "must be integers"),
        (torch.tensor([[0, 5]]), "must be integers"),
    ],
)
def test_lengths_that_do_not_fit(lengths: Tensor, message: str) -> None:
    with pytest.raises(UserError, match=message):
        softmax("NS").forward_packed(torch.zeros(5, WIDTH), query_cu_seqlens=lengths)


def test_sources_that_do_not_fit() -> None:
    module, x = softmax("NC"), torch.zeros(5, WIDTH)
    with pytest.raises(UserError, match="belong together"):
        module.forward_packed(x, x, x, query_cu_seqlens=cumulative(5))
    with pytest.raises(UserError, match="1 sequences and key_cu_seqlens 2"):
        module.forward_packed(x, x, x, query_cu_seqlens=cumulative(5), key_cu_seqlens=cumulative(2, 3))
