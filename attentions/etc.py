"""ETC's global-local attention (Ainslie et al. 2020) in one sequence: labels of pairs, a window, global tokens.

Shapes: B batch, H heads, N tokens, E width of a head, g global tokens, r radius, K largest label.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attentions.kernels.pieces import each_length, in_pieces, weighted
from attentions.kernels.relative import Distances, Slots, relative_attention
from cab import Attention, Pattern, register_attention
from cab.attention import PaddingMasks
from cab.errors import UserError


@register_attention("etc", patterns="NS", complexity="n", paper="Ainslie et al. 2020")
class ETCAttention(Attention):
    """Softmax of (q_i k_j + q_i a_l + b_l) / sqrt(E), where l is the label of the pair (i, j)  (section 3.2):

    * a long token sees long tokens up to r away, and all global ones;
    * a global token sees all tokens.

    Labels are distances j - i cut to -K .. K, in the long and in the global part apart, and one label for each of
    the two parts that lie across. The paper has a second stream of global tokens beside the sequence through all
    layers; in one slot they are the first g of the sequence, as in Big Bird's ITC, and all tokens share one set of
    projections (the paper's ``share_kv_projections``, ``share_qkv_projections`` and ``share_att_output_projection``).

    Not causal: a long token reads global ones, which have read all long ones a layer before.

    Args:
        radius: r.
        num_globals: g.
        max_distance: K.

    Raises:
        ValueError: for a negative size.
    """

    requires_right_padding = True

    def __init__(
        self,
        *,
        pattern: Pattern | str,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        radius: int = 84,
        num_globals: int = 230,
        max_distance: int = 12,
    ) -> None:
        super().__init__(pattern=pattern, embed_dim=embed_dim, num_heads=num_heads, dropout=dropout)
        if min(radius, num_globals, max_distance) < 0:
            raise UserError(
                f"radius, num_globals and max_distance must be at least 0, got {radius}, {num_globals}, {max_distance}"
            )
        self.radius, self.num_globals, self.max_distance = radius, num_globals, max_distance
        # Distances of the long part, of the global part, long to global, global to long.
        count = 2 * (2 * max_distance + 1) + 2
        self.label_key = nn.Parameter(nn.init.trunc_normal_(torch.empty(num_heads, count, self.head_dim), std=0.5))
        self.label_bias = nn.Parameter(torch.zeros(num_heads, count))

    def labels(self, query: Tensor, key: Tensor) -> Tensor:
        """Numbers of the labels of pairs of positions."""
        reach, g = self.max_distance, self.num_globals
        distance = (key - query).clamp(-reach, reach) + reach
        across = 2 * (2 * reach + 1)
        of_global = torch.where(key < g, distance + 2 * reach + 1, across + 1)
        return torch.where(query < g, of_global, torch.where(key < g, across, distance))

    def reference(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        j = torch.arange(key.shape[1], device=key.device)
        i = j[:, None]
        label = self.labels(i, j)
        logits = query @ key.mT + torch.einsum("hie,hije->hij", query, self.label_key[:, label])
        logits = (logits + self.label_bias[:, label]) * self.scale
        hidden = ((i - j).abs() > self.radius) & (i >= self.num_globals) & (j >= self.num_globals)
        return logits.masked_fill(hidden, -torch.inf).softmax(dim=-1) @ value

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding: PaddingMasks) -> Tensor:
        return each_length(self.spread, (query, key, value), padding.key)

    def spread(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        g, length = min(self.num_globals, query.shape[2]), query.shape[2]
        outputs = [self.of_globals(query[:, :, :g], key, value)] if g else []
        if g < length:
            q, k, v = (x[:, :, g:] for x in (query, key, value))
            outputs.append(self.of_long(q, k, v, key[:, :, :g], value[:, :, :g]))
        return torch.cat(outputs, dim=2)

    def of_long(self, query: Tensor, key: Tensor, value: Tensor, global_key: Tensor, global_value: Tensor) -> Tensor:
        """Long tokens, over their windows and the global tokens as slots."""
        reach = min(self.radius, query.shape[2] - 1)
        back = torch.arange(-reach, reach + 1, device=query.device)
        label = back.clamp(-self.max_distance, self.max_distance) + self.max_distance
        distances = Distances(reach, reach, self.label_key[:, label], self.label_bias[:, label] * self.scale)
        across = 2 * (2 * self.max_distance + 1)
        bias = (self.label_bias[:, across] * self.scale)[:, None].expand(-1, global_key.shape[2])
        global_key = global_key + self.label_key[:, across, None].to(global_key.dtype)
        slots = Slots(global_key, global_value, bias) if self.num_globals else None
        return relative_attention(query, key, value, distances, slots=slots, dropout=self.weight_dropout)

    def of_globals(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Global tokens, over all."""
        g, dropout = query.shape[2], self.weight_dropout
        position = torch.arange(g, device=query.device)
        label = self.labels(position[:, None], position)
        across = 2 * (2 * self.max_distance + 1) + 1

        def mean(query: Tensor, key: Tensor, value: Tensor, label_key: Tensor, label_bias: Tensor) -> Tensor:
            by_label = query @ label_key.mT + label_bias[:, None]
            among = by_label.gather(2, label.expand(len(query), -1, -1))
            beyond = by_label[..., across, None].expand(-1, -1, key.shape[1] - g)
            logits = (query @ key.mT + torch.cat([among, beyond], dim=-1)) * self.scale
            return weighted(logits, None, dropout) @ value

        cost = 3 * g * key.shape[2]
        return in_pieces(mean, (query, key, value), (self.label_key, self.label_bias), cost=cost, dropout=dropout)
