"""Softmax attention and its relatives: caches, positions, decays, heads that share keys, the flash kernel."""

import math

import pytest
import torch

from attentions.flash import mask_by_coordinate
from attentions.kernels.layers import alibi_slopes, rotate
from cab import build_attention
from cab.registry.build import state_bytes
from tests.helpers.attentions.agreement import make


def test_a_window_bounds_the_cache():
    """To the first tokens, those of the window that a next token sees, and the recent ones; rows may be ragged."""
    module = make("vanilla", "CS", window=10, sink_tokens=4, positions="rope").eval()
    mask = torch.zeros(2, 90, dtype=torch.bool)
    mask[1, :30] = True
    with torch.no_grad():
        state = module.prefill(torch.randn(2, 90, 24).double(), module.init_state(2), query_padding_mask=mask)[1]
        kept = [row[~hidden].tolist() for row, hidden in zip(state["position"], state["key_padding"], strict=True)]
        assert {0, 1, 2, 3, *range(81, 90)} <= set(kept[0])
        assert {0, 1, 2, 3, *range(51, 60)} <= set(kept[1])
        sizes = []
        for token in torch.randn(200, 2, 24).double():
            state = module.step(token, state)[1]
            sizes.append(state["key"].shape[2] + state["recent_key"].shape[2])
    assert max(sizes[64:]) <= 4 + 9 + 64  # first tokens, window, recent tokens


def test_slopes_and_rotations_are_the_published():
    """ALiBi's for 8 and 12 heads (section 3 and its code); rotary positions turn c and c + E / 2, as in Llama."""
    slopes = alibi_slopes(torch.arange(8, dtype=torch.float64))
    torch.testing.assert_close(slopes, 0.5 ** torch.arange(1, 9, dtype=torch.float64))
    twelve = alibi_slopes(torch.arange(12, dtype=torch.float64))
    torch.testing.assert_close(twelve[8:], 0.5 ** torch.tensor([0.5, 1.5, 2.5, 3.5], dtype=torch.float64))
    x = torch.tensor([1.0, 0.0, 0.0, 2.0], dtype=torch.float64).view(1, 1, 1, 4)
    turned = rotate(x, torch.tensor([[3]]), by_halves=True).flatten().tolist()
    angle, slow = 3.0, 0.03
    assert turned == pytest.approx([math.cos(angle), -2 * math.sin(slow), math.sin(angle), 2 * math.cos(slow)])


def test_what_was_forgotten_over_thousands_of_tokens_does_not_round_the_near_ones():
    """In float32, F near -20,000: as if the sequence began ten tokens ago."""
    module = build_attention("forgetting", pattern="CS", embed_dim=8, num_heads=1)
    torch.nn.init.zeros_(module.forget.weight)
    torch.nn.init.constant_(module.forget.bias, -5.0)
    x = torch.randn(1, 4000, 8)
    torch.testing.assert_close(module(x)[:, -1], module(x[:, -10:])[:, -1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("heads", "groups"), [(1, 1), (8, 1), (12, 1), (16, 1), (32, 2), (56, 2), (64, 4)])
def test_heads_of_nsa_share_keys_as_published(heads, groups):
    module = build_attention("nsa", pattern="CS", embed_dim=heads, num_heads=heads)
    assert module.num_kv_heads == groups
    assert module.k_proj.out_features == 3 * groups


@pytest.mark.parametrize(("width", "heads", "rank", "rotary"), [(32, 4, 8, 4), (512, 8, 128, 32), (768, 12, 192, 32)])
def test_latent_state_has_one_short_vector_per_token(width, heads, rank, rotary):
    """Four head widths, at most a quarter of the width."""
    module = build_attention("mla", pattern="CS", embed_dim=width, num_heads=heads)
    assert state_bytes(module, 3) - state_bytes(module, 2) == 4 * (rank + rotary) + 1  # c, k', and the mask
    assert all(part.bias is None for part in module.modules() if isinstance(part, torch.nn.Linear))


def test_flash_hides_padding_without_a_mask():
    """As on CUDA, whose kernel takes none."""
    query, key, value = torch.randn(3, 2, 4, 7, 8, requires_grad=True).unbind()
    visible = torch.tensor([[True] * 4 + [False] * 3, [False, True] * 3 + [True]])[:, None, None]
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, visible)
    padded = mask_by_coordinate(query, key * 9.0, value, visible)
    output = torch.nn.functional.scaled_dot_product_attention(*padded, scale=8**-0.5 / 9.0)[..., :8]
    torch.testing.assert_close(output, expected)
