"""Funnel blocks beside the public code: how it pools and repeats, and what its encoder and decoder compute."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from backbones.layers.funnel import pool, repeat
from cab import Backbone
from tests.backbones.language_models import VOCABULARY
from tests.backbones.test_funnel import BLOCKS, funnel

pytestmark = pytest.mark.slow


@pytest.fixture
def published() -> nn.ModuleDict:
    """The public code, whose attention here has no positions and no segments, for they are the slot's affair."""
    from transformers.models.funnel import modeling_funnel  # takes seconds to import

    config = modeling_funnel.FunnelConfig(
        vocab_size=VOCABULARY,
        block_sizes=BLOCKS,
        num_decoder_layers=2,
        d_model=24,
        n_head=3,
        d_head=8,
        d_inner=40,
        hidden_act="gelu",
        hidden_dropout=0.0,
        attention_dropout=0.0,
        activation_dropout=0.0,
        layer_norm_eps=1e-5,
        truncate_seq=False,
    )
    encoder = modeling_funnel.FunnelEncoder(config).double().eval()
    return nn.ModuleDict({"encoder": encoder, "decoder": modeling_funnel.FunnelDecoder(config).double().eval()})


def copy_weights(ours: Backbone, published: nn.ModuleDict) -> None:
    theirs = [layer for block in published["encoder"].blocks for layer in block] + list(published["decoder"].layers)
    for mine, other in zip(ours.layers, theirs, strict=True):
        slot, attention = mine.self_attention, other.attention
        nn.init.zeros_(slot.q_proj.bias)  # theirs has none
        attention.q_head.weight.data = slot.q_proj.weight.data
        for source, target in (
            (slot.k_proj, attention.k_head),
            (slot.v_proj, attention.v_head),
            (slot.out_proj, attention.post_proj),
            (mine.self_residual.norm, attention.layer_norm),
            (mine.feed_forward.expand, other.ffn.linear_1),
            (mine.feed_forward.reduce, other.ffn.linear_2),
            (mine.feed_forward_residual.norm, other.ffn.layer_norm),
        ):
            target.load_state_dict(source.state_dict())
        for name in ("r_w_bias", "r_r_bias", "r_kernel", "r_s_bias", "seg_embed"):
            nn.init.zeros_(getattr(attention, name))


@pytest.mark.parametrize("length", [5, 17, 18, 19, 20])
def test_the_public_code_computes_the_same(published: nn.ModuleDict, length: int) -> None:
    """Positions that are pooled and repeated, encoder and decoder; rows without padding, which it pools with tokens."""
    from transformers.models.funnel import modeling_funnel

    structure = published["encoder"].attention_structure
    x = torch.randn(3, length, 24, dtype=torch.double)
    torch.testing.assert_close(pool(x, None), structure.pool_tensor(x))
    short = pool(pool(x, None), None)
    torch.testing.assert_close(repeat(short, 4, length), modeling_funnel.upsample(short, 4, length))
    ours = funnel()
    copy_weights(ours, published)
    ones, first = torch.ones(3, length), BLOCKS[0]
    states = published["encoder"](x, ones, output_hidden_states=True).hidden_states
    expected = published["decoder"](states[-1], states[first], ones.double()).last_hidden_state
    torch.testing.assert_close(ours.layers(x, None), expected)
