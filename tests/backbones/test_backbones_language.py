"""GPT-2, RoBERTa and Transformer: what they compute, from whatever rows, and what they refuse."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from backbones.layers.tokens import SinusoidalPositions
from cab import Backbone, build_backbone
from tests.helpers.backbones.language_models import VOCABULARY, padding, small, tokens

# --- what they compute ---------------------------------------------------------------------------------------------


def test_sinusoidal_positions_are_fairseqs() -> None:
    encoding = SinusoidalPositions(10)(torch.tensor([[0, 1, 8191]]))[0]
    for row, position in zip(encoding, (2, 3, 8193), strict=True):
        angles = [position * 10000 ** (-k / 4) for k in range(5)]
        expected = [math.sin(angle) for angle in angles] + [math.cos(angle) for angle in angles]
        torch.testing.assert_close(row, torch.tensor(expected), atol=6e-4, rtol=0)  # float32 angles up to 8,193
    assert SinusoidalPositions(7)(torch.tensor([[3]])).shape == (1, 1, 7)


def test_gpt2_adds_positions_to_scaled_embeddings() -> None:
    """Without attention and with feed-forward maps at zero, what is left is embedding, norm and tied output."""
    backbone = small("gpt2", "CS", "none")
    for name, parameter in backbone.named_parameters():
        if ".reduce." in name:
            nn.init.zeros_(parameter)
    ids = tokens(2, 11)
    table = backbone.decoder_embedding.tokens.weight
    x = table[ids] * math.sqrt(24) + SinusoidalPositions(24)(torch.arange(11)).double()
    norm = backbone.final_norm
    torch.testing.assert_close(backbone(ids), F.layer_norm(x, (24,), norm.weight, norm.bias) @ table.t())


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")  # torch's own remark on an odd number of heads
def test_transformer_is_torchs_post_norm_transformer() -> None:
    ours = small("transformer", "CC", embed_layer_norm=True)
    theirs = nn.Transformer(24, 3, 2, 2, 40, 0.0, F.gelu, batch_first=True, dtype=torch.float64)
    theirs.encoder.norm = theirs.decoder.norm = None
    for mine, other in zip(ours.encoder_layers, theirs.encoder.layers, strict=True):
        copy_layer(mine, other, [(mine.self_attention, other.self_attn)])
    for mine, other in zip(ours.decoder_layers, theirs.decoder.layers, strict=True):
        pairs = [(mine.self_attention, other.self_attn), (mine.cross_attention, other.multihead_attn)]
        copy_layer(mine, other, pairs)
    source, target = tokens(3, 17), tokens(3, 9)
    mask = padding(17)[[0, 4, 0]]

    def embed(embedding: nn.Module, ids: Tensor) -> Tensor:
        x = embedding.tokens.weight[ids] * math.sqrt(24) + embedding.positions.table.weight[: ids.shape[1]]
        return F.layer_norm(x, (24,), embedding.norm.weight, embedding.norm.bias)

    causal = nn.Transformer.generate_square_subsequent_mask(9, dtype=torch.float64)
    expected = theirs.eval()(
        embed(ours.encoder_embedding, source),
        embed(ours.decoder_embedding, target),
        tgt_mask=causal,
        src_key_padding_mask=mask,
        memory_key_padding_mask=mask,
    )
    torch.testing.assert_close(ours(source, target, mask), expected @ ours.output.weight.t())


def copy_layer(mine: nn.Module, other: nn.Module, attentions: list[tuple[nn.Module, nn.Module]]) -> None:
    """Our layer's weights into torch's."""
    for ours, theirs in attentions:
        projections = [ours.q_proj, ours.k_proj, ours.v_proj]
        theirs.in_proj_weight.data = torch.cat([p.weight for p in projections])
        theirs.in_proj_bias.data = torch.cat([p.bias for p in projections])
        theirs.out_proj.load_state_dict(ours.out_proj.state_dict())
    other.linear1.load_state_dict(mine.feed_forward.expand.state_dict())
    other.linear2.load_state_dict(mine.feed_forward.reduce.state_dict())
    residuals = [mine.self_residual, mine.feed_forward_residual]
    if len(attentions) == 2:
        residuals.insert(1, mine.cross_residual)
    for number, residual in enumerate(residuals, start=1):
        getattr(other, f"norm{number}").load_state_dict(residual.norm.state_dict())


def test_roberta_gives_logits_at_selected_places_alone() -> None:
    backbone = small("roberta", "NS")
    ids, mask = tokens(5, 19), padding(19)
    chosen = (torch.rand(5, 19) < 0.3) & ~mask
    selected = chosen.flatten().nonzero().squeeze(1)
    everything, alone = backbone(ids, mask)[chosen], backbone(ids, mask, selected=selected)
    assert alone.shape == (int(chosen.sum()), VOCABULARY)
    torch.testing.assert_close(alone, everything)
    compare_gradients(backbone, everything, alone)


def compare_gradients(backbone: Backbone, a: Tensor, b: Tensor) -> None:
    """Of the same random combination of two outputs."""
    direction = torch.randn_like(a)
    parameters = list(backbone.parameters())
    pair = [torch.autograd.grad(x, parameters, direction, allow_unused=True) for x in (a, b)]
    for (name, _), first, second in zip(backbone.named_parameters(), *pair, strict=True):
        assert (first is None) == (second is None), name
        if first is not None:
            torch.testing.assert_close(first, second, msg=lambda text, name=name: f"{name}: {text}")


def test_transformer_options_change_the_tables_they_name() -> None:
    def count(**options: Any) -> int:
        with torch.device("meta"):
            backbone = build_backbone("transformer", pattern="CC", **options)
        return sum(parameter.numel() for parameter in backbone.parameters())

    as_counted = count()
    assert as_counted == 123_704_832
    assert count(embed_layer_norm=True) == 123_706_880
    assert count(share_embeddings=True) == as_counted - 2 * 50_265 * 512
    shared = small("transformer", "CC", share_embeddings=True)
    assert shared.output.weight is shared.encoder_embedding.tokens.weight is shared.decoder_embedding.tokens.weight


def test_initialization() -> None:
    sizes = {"vocab_size": 3000, "embed_dim": 96, "num_heads": 4, "ffn_dim": 200, "num_layers": 4}
    gpt2 = build_backbone("gpt2", pattern="CS", **sizes)
    assert gpt2.decoder_embedding.tokens.weight.std().item() == pytest.approx(96**-0.5, rel=0.02)
    layers = {"encoder_layers": 1, "decoder_layers": 1}
    of_both = {name: size for name, size in sizes.items() if name != "num_layers"}
    transformer = build_backbone("transformer", pattern="CC", **of_both, **layers)
    assert transformer.output.weight.std().item() == pytest.approx(96**-0.5, rel=0.02)
    expand = gpt2.decoder_layers[0].feed_forward.expand
    assert expand.weight.std().item() == pytest.approx((2 / 296) ** 0.5, rel=0.05)
    assert not expand.bias.any()
    roberta = build_backbone("roberta", pattern="NS", **sizes)
    layer = roberta.layers[3]
    tables = [roberta.embedding.tokens, roberta.embedding.positions.table]
    for module in (*tables, layer.feed_forward.expand, layer.self_attention.q_proj, layer.self_attention.out_proj):
        assert module.weight.std().item() == pytest.approx(0.02, rel=0.05)
    narrow = build_backbone("roberta", pattern="NS", **sizes, init_std=0.125)
    assert narrow.layers[0].feed_forward.expand.weight.std().item() == pytest.approx(0.125, rel=0.05)
    # With a number, attentions keep their own: Xavier uniform with gain 1/sqrt(2).
    assert narrow.layers[3].self_attention.q_proj.weight.std().item() == pytest.approx((1 / 192) ** 0.5, rel=0.05)
    # At the start, the loss is near that of an even guess.
    ids = torch.randint(3000, (2, 50))
    for backbone, bound in ((gpt2.eval(), 1.5), (roberta.eval(), 0.2)):
        loss = F.cross_entropy(backbone(ids).flatten(0, 1), torch.randint(3000, (100,)))
        assert abs(loss.item() - math.log(3000)) < bound
