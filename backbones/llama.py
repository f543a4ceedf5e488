"""Llama (Touvron et al. 2023): a causal or masked language model, used for LM and MLM. Attention layers: CS or NS."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from backbones.gpt2 import GPT2
from backbones.layers.branches import Branch, BranchLayer, BranchStack
from backbones.layers.transformer import LayerStack, stack
from cab import UserError, register_backbone
from cab.backbone import AttentionFactory
from cab.registry.options import Positive


@register_backbone("llama", paper="Touvron et al. 2023", tasks={"lm": "CS", "mlm": "NS"})
class Llama(GPT2):
    """Predict the next token from all tokens up to the current one (CS), or masked tokens from both sides (NS).

    Pre-norm layers with RMS norms (epsilon 1e-6), SwiGLU (Shazeer 2020), no biases and no position embedding: positions
    are the attention's. `vanilla` is Llama's with ``positions=rope, qkv_bias=false, out_bias=false``, which `cab run`
    sets, and with ``num_kv_heads`` below ``num_heads`` that of Llama 2 70B and Llama 3. Any other attention has its
    own positions, or none. The default sizes are those of `gpt2`, with SwiGLUs of 8/3 the width.

    Args:
        make_attention: builds the attention layers, one CS or NS per layer.
        vocab_size: size of the dictionary, including the mask in NS.
        embed_dim, num_heads, ffn_dim, num_layers: sizes of the stack.
        dropout: applied to embeddings and branch outputs.
        attention_dropout: applied to attention weights.
        tied: share the input and output tables.
        init_std: draw tables and all linear weights, attentions included, from N(0, init_std^2), as released (0.02) and
            in flash-linear-attention. Biases keep their values. By default, tables are drawn from N(0, 1 / embed_dim),
            SwiGLUs are Xavier uniform, and attentions use their own initialization.
        depth_block: replace residual sums by attention over depth, with a source per ``depth_block`` branches (1 in
            the full form of Attention Residuals, arXiv:2603.15031); None: residual sums.
        checkpoint_activations: recompute layers in the backward pass instead of storing their activations.
    """

    all_layers_use_tested_pattern = True

    def __init__(
        self,
        *,
        make_attention: AttentionFactory,
        vocab_size: int = 48520,
        embed_dim: int = 768,
        num_heads: int = 12,
        ffn_dim: int = 2048,
        num_layers: int = 12,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        tied: bool = False,
        init_std: float | None = None,
        depth_block: Positive | None = None,
        checkpoint_activations: bool = False,
    ) -> None:
        self.depth_block = depth_block
        super().__init__(
            make_attention=make_attention,
            vocab_size=vocab_size,
            embed_dim=embed_dim,
            num_heads=num_heads,
            ffn_dim=ffn_dim,
            num_layers=num_layers,
            dropout=dropout,
            attention_dropout=attention_dropout,
            positions="none",
            scale_embedding=False,
            activation="swish",
            norm="rms",
            feed_forward="glu_without_bias",
            checkpoint_activations=checkpoint_activations,
        )
        self.head = None if tied else nn.Linear(embed_dim, vocab_size, bias=False)
        if self.head is not None:
            nn.init.normal_(self.head.weight, std=embed_dim**-0.5)
        if init_std is not None:
            for module in self.modules():
                if isinstance(module, nn.Linear | nn.Embedding):
                    nn.init.normal_(module.weight, std=init_std)

    def make_layers(self, num_layers: int, *arguments: Any, **options: Any) -> LayerStack:
        """Build the layers with attentions of the pattern under test."""
        make_attention = arguments[0]
        if make_attention.pattern.is_cross:
            raise UserError(f"backbone 'llama' has no layer with pattern {make_attention.pattern} (supported: NS CS)")
        arguments = (make_attention, make_attention.pattern)
        if self.depth_block is None:
            return super().make_layers(num_layers, *arguments, **options)
        kind = partial(DepthStack, embed_dim=options["embed_dim"], block_size=self.depth_block)
        return stack(num_layers, partial(BranchLayer, *arguments, **options), kind)

    @property
    def output_weight(self) -> Tensor:
        return self.decoder_embedding.tokens.weight if self.head is None else self.head.weight


DEPTH_EPS = 1e-6  # added to the mean square, as in RMSNorm


class DepthStack(BranchStack):
    """Attention over depth instead of residual sums: Attention Residuals (arXiv:2603.15031).

    The input of branch l is the mix sum_i softmax_i(w_l RMSNorm_l(v_i)) v_i of the sources v_i; so is the output.

    The sources are the embedding and the sums of ``block_size`` branch outputs; the last sum may have fewer. w starts
    at zero: the mean of the sources. Scores and sums are per token, so that decoding needs no state.

    Args:
        embed_dim: D.
        block_size: branches per source; 1 is the full form, with memory for every branch output.
    """

    def __init__(self, layers: Iterable[nn.Module], *, embed_dim: int, block_size: int) -> None:
        super().__init__(layers)
        self.block_size = block_size
        self.depth_query = nn.Parameter(torch.zeros(2 * len(self) + 1, embed_dim))
        self.depth_norm = nn.Parameter(torch.ones(2 * len(self) + 1, embed_dim))

    def join(self, branches: Sequence[Branch], x: Tensor) -> Tensor:
        sources = [x]
        for number, (branch, vector) in enumerate(zip(branches, self.depth_query * self.depth_norm, strict=False)):
            y = branch(mix(sources, vector))
            if number % self.block_size:
                sources[-1] = sources[-1] + y
            else:
                sources.append(y)
        return mix(sources, self.depth_query[-1] * self.depth_norm[-1])


def mix(sources: Sequence[Tensor], vector: Tensor) -> Tensor:
    """Return sum_i softmax_i(vector v_i / rms(v_i)) v_i for sources v [B, N, D], in float32 or wider inside."""
    wide = [x.to(torch.promote_types(x.dtype, torch.float32)) for x in sources]
    scores = [(x * vector).sum(dim=-1) * (x.square().mean(dim=-1) + DEPTH_EPS).rsqrt() for x in wide]
    mixed = torch.zeros_like(wide[0])
    for x, weight in zip(wide, torch.stack(scores).softmax(dim=0), strict=True):
        mixed = torch.addcmul(mixed, x, weight.unsqueeze(-1))
    return mixed.to(sources[0].dtype)
