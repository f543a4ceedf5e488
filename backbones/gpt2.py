"""GPT-2 (Radford et al. 2019) as fairseq builds it: a causal language model. Used for LM; slots CS."""

from __future__ import annotations

import math
from functools import partial

from torch import Tensor
from torch.nn import functional as F

from backbones.layers.decoder import DecodingState, TokenDecoder
from backbones.layers.norms import make_norm
from backbones.layers.token_losses import token_losses
from backbones.layers.tokens import (
    LearnedPositions,
    SinusoidalPositions,
    TokenEmbedding,
    check_tokens,
    number_positions,
)
from backbones.layers.transformer import TransformerLayer, stack
from cab import Pattern, UserError, register_backbone
from cab.backbone import SlotFiller


@register_backbone("gpt2", paper="Radford et al. 2019")
class GPT2(TokenDecoder):
    """Logits of the next token from all tokens up to this one.

    The defaults are CAB's network (Table 14, 122,319,360 parameters): fairseq's ``transformer_lm_gpt`` on the BPE
    types that occur in PG-19. Layer norm before each branch and after the last layer, biased maps, GELU, one
    table for input and output. The table is drawn from N(0, 1 / embed_dim), the feed-forward maps Xavier uniform;
    attentions initialise themselves.

    The released GPT-2 (:func:`backbones.pretrained.load_huggingface_gpt2`) has ``vocab_size=50257,
    positions="learned", max_length=1024, scale_embedding=False, activation="gelu_tanh"``.

    Args:
        slots: fills the attention slots, one CS a layer.
        vocab_size: tokens of the dictionary.
        embed_dim, num_heads, ffn_dim, num_layers: as usual.
        dropout: of embeddings and branches.
        attention_dropout: of attention weights.
        positions: ``sinusoidal``, for any length, or ``learned``.
        max_length: number of learned positions.
        scale_embedding: multiply embeddings by sqrt(embed_dim).
        activation: ``relu``, ``gelu``, ``gelu_tanh``, ``swish`` or ``identity``.
        norm: ``layer``, or ``simplerms`` as in TransNormer's language model: norms without weights, one of them after
            the embedding.
        feed_forward: ``plain``, or ``glu`` with a third map, whose activation is the gate's.
        checkpoint_activations: recompute layers in the backward pass instead of keeping their activations.
    """

    gives_losses = True

    def __init__(
        self,
        *,
        slots: SlotFiller,
        vocab_size: int = 48520,
        embed_dim: int = 768,
        num_heads: int = 12,
        ffn_dim: int = 3072,
        num_layers: int = 12,
        dropout: float = 0.0,
        attention_dropout: float = 0.1,
        positions: str = "sinusoidal",
        max_length: int = 1024,
        scale_embedding: bool = True,
        activation: str = "gelu",
        norm: str = "layer",
        feed_forward: str = "plain",
        checkpoint_activations: bool = False,
    ) -> None:
        super().__init__()
        if positions not in ("sinusoidal", "learned"):
            raise UserError(f"unknown positions '{positions}': choose sinusoidal or learned")
        self.checkpoint_activations = checkpoint_activations
        self.decoder_embedding = TokenEmbedding(
            vocab_size,
            embed_dim,
            positions=LearnedPositions(max_length, embed_dim)
            if positions == "learned"
            else SinusoidalPositions(embed_dim),
            scale=math.sqrt(embed_dim) if scale_embedding else 1.0,
            norm=None if norm == "layer" else norm,
            dropout=dropout,
        )
        layer = partial(
            TransformerLayer,
            slots,
            Pattern.CS,
            embed_dim=embed_dim,
            num_heads=num_heads,
            ffn_dim=ffn_dim,
            norm="pre",
            norm_kind=norm,
            feed_forward=feed_forward,
            activation=activation,
            dropout=dropout,
            attention_dropout=attention_dropout,
        )
        self.decoder_layers = stack(num_layers, layer)
        self.final_norm = make_norm(norm, embed_dim)

    def forward(self, tokens: Tensor, padding_mask: Tensor | None = None, *, targets: Tensor | None = None) -> Tensor:
        """Logits of the token after each; or how unlikely ``targets`` are, for which they never are in memory.

        Args:
            tokens: [B, N] ids.
            padding_mask: [B, N], True = padding, wherever it stands; positions count real tokens only.
            targets: ids of the tokens that follow, [B, N].

        Returns:
            [B, N, V], or with ``targets`` their negative log-likelihoods [B, N].

        Raises:
            ValueError: tokens or a mask that do not fit, a row without a token, more tokens than learned positions.
        """
        embedding = self.decoder_embedding
        check_tokens("tokens", tokens, padding_mask, vocab_size=embedding.vocab_size, max_length=self.max_target_length)
        x = embedding(tokens, number_positions(tokens, padding_mask))
        for layer in self.decoder_layers:
            x = self.run_layer(layer, x, padding_mask)
        x = self.finish(x)
        return self.predict(x) if targets is None else token_losses(x, embedding.tokens.weight, None, targets)

    def finish(self, x: Tensor) -> Tensor:
        return self.final_norm(x)

    def predict(self, x: Tensor) -> Tensor:
        return F.linear(x, self.decoder_embedding.tokens.weight)

    def init_state(self, batch_size: int) -> DecodingState:
        """The state before the first token of ``batch_size`` rows."""
        return self.start_decoding(batch_size)
