"""The attentions whose place is known beforehand are what they are called."""

from __future__ import annotations

import torch

from tests.cab.suite import held_back


def test_the_first_tokens_are_all_that_is_read() -> None:
    attention = held_back.FirstTokens(pattern="NC", embed_dim=16, num_heads=4)
    query, source = torch.randn(2, 5, 16), torch.randn(2, 13, 16)
    other = source.clone()
    other[:, held_back.FirstTokens.count :] = torch.nan
    assert torch.equal(attention(query, source, source), attention(query, other, other))
    rolled = source.roll(1, dims=1)
    assert not torch.equal(attention(query, source, source), attention(query, rolled, rolled))


def test_the_mean_is_the_same_whatever_is_asked() -> None:
    attention = held_back.MeanOfAll(pattern="NC", embed_dim=16, num_heads=4)
    source = torch.randn(2, 13, 16)
    outputs = [attention(torch.randn(2, 5, 16), source, source) for _ in range(2)]
    assert torch.allclose(*outputs, atol=1e-6)
    assert torch.allclose(outputs[0], outputs[0][:, :1].expand_as(outputs[0]), atol=1e-6)


def test_half_of_the_heads_learn_nothing() -> None:
    attention = held_back.HalfDead(pattern="NS", embed_dim=16, num_heads=4)
    attention(torch.randn(2, 9, 16)).sum().backward()
    gradient = attention.v_proj.weight.grad
    assert gradient is not None
    assert gradient[:8].abs().min() > 0
    assert gradient[8:].abs().max() == 0
