"""Nystromformer and LARA: readable forms, segments, limits, options."""

from __future__ import annotations

import pytest
import torch

from attentions.kernels.key_summaries import segment_means, segments
from attentions.landmarks import pseudo_inverse
from cab import build_attention
from tests.attentions.agreement import make


def test_training_samples_are_the_same_in_both_forms() -> None:
    module = make("lara", "NS")
    x = torch.randn(2, 30, 24, dtype=torch.float64)
    results = []
    for module.use_reference in (False, True):
        torch.manual_seed(5)
        results.append(module(x))
    torch.testing.assert_close(*results)
    assert not torch.allclose(module(x), module(x))
    assert torch.equal(module.eval()(x), module(x))


@pytest.mark.parametrize("length", [1, 4, 5, 16, 17, 31])
def test_segments_are_means_of_real_tokens(length: int) -> None:
    x = torch.randn(3, 40, 6)
    weights, absent = segment_means(5, torch.tensor([length, 40, 7]), 40, x.dtype)
    expected = segments(x[:1, :length], 5)[0]
    torch.testing.assert_close((weights @ x)[0, : len(expected)], expected)
    assert absent[0].tolist() == [i >= min(5, length) for i in range(5)]
    assert not weights[0, :, length:].any()


def test_pseudo_inverse_inverts_each_matrix_by_itself() -> None:
    sharp = torch.eye(6) * 8
    matrices = torch.stack([(sharp + torch.randn(6, 6)).softmax(dim=-1), (sharp * 2).softmax(dim=-1)]).double()
    inverse = pseudo_inverse(matrices)
    torch.testing.assert_close(inverse[0] @ matrices[0], torch.eye(6).double(), atol=1e-3, rtol=0)
    torch.testing.assert_close(pseudo_inverse(matrices[:1])[0], inverse[0])


def test_short_rows_get_softmax_attention() -> None:
    vanilla = build_attention("vanilla", pattern="NS", embed_dim=24, num_heads=3)
    module = build_attention("nystromformer", pattern="NS", embed_dim=24, num_heads=3, num_landmarks=8)
    module.load_state_dict(vanilla.state_dict())
    x = torch.randn(2, 20, 24)
    mask = torch.zeros(2, 20, dtype=torch.bool)
    mask[0, 7:] = True
    torch.testing.assert_close(module(x, key_padding_mask=mask)[0, :7], vanilla(x[:1, :7])[0])
