"""The base class of every attention: projections, heads, padding, and decoding one token at a time.

Legend of shapes: B batch, N targets, M keys, D width, H heads, E = D / H width of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from cab.decoding import Decoding, State, clean_rows, reorder_state
from cab.input_checks import check_inputs
from cab.padding import Padding, restore_rows, union, without_padding
from cab.patterns import Pattern

__all__ = ["ALONE", "Attention", "Depth", "Padding", "SoftmaxLimit", "State", "reorder_state"]


@dataclass(frozen=True)
class Depth:
    """Where an attention stands among the slots of its kind in a network: number ``index`` of ``count``."""

    index: int
    count: int


ALONE = Depth(0, 1)
"""Of an attention in no network."""


@dataclass(frozen=True)
class SoftmaxLimit:
    """Sets of options that bring a method ever nearer to softmax attention, the last within ``tolerance``.

    The tolerance is a relative error, root mean square.
    """

    options: tuple[Mapping[str, Any], ...]
    tolerance: float = 1e-5


class Attention(Decoding):
    """``(query, key, value) -> output``, drop-in for multi-head attention, built for one pattern.

    A subclass writes ``attend`` (on heads) and, beside it, ``reference``, the paper's equations on one row. All else
    has a correct default: padded inputs are set to zero before the projections and padded outputs after them, so
    whatever stands in the padding (NaN included) reaches neither outputs nor gradients; decoding recomputes the
    prefix until the subclass has a ``decode``.

    What a subclass writes, on heads, query [B, H, N, E], key and value [B, H, M, E]; ``**more`` are the tensors of
    the hooks below, each by its name, for those that it has:

    * ``attend(query, key, value, padding, **more)`` -> [B, H, N, E]. Padded entries are projections of zeros, and
      padded outputs are discarded.
    * ``reference(query, key, value, **more)`` -> [H, n, E]: the same function for one row without padding, slow and
      readable: query [H, n, E], key and value [H, m, E].
    * for decoding in CS, ``start(batch_size, like)`` -> state before the first token, of the type and device of the
      tensor ``like``; ``decode(query, key, value, state, padding, **more)`` -> heads of these tokens, and the new
      state. In CC, ``read_source(key, value, padding, **more)`` -> state, and
      ``decode_cross(query, state, padding, **more)``. Rows come with their padding at the right end.

    Hooks for what else a method needs, each a mapping from names to tensors with the batch first:

    * ``query_extras(x)``, ``key_extras(x)``: what it computes from the layer's inputs, [B, N, D] of the targets and
      [B, M, D] of the source, zero at padding: gates, decays, write strengths.
    * ``draws(query, key, padding)``: the random numbers of a call, from the same inputs, so that ``attend`` and
      ``reference`` share them.
    * ``add_loss``, ``gather`` and ``learn``, ``parameter_rules``: what it needs of the training loop (cab.learning).

    A constructor that names an argument ``depth`` gets the :class:`Depth` of its slot.

    Attributes a subclass may set, for the class or (``compacts_padding``) for an instance:

    * ``compacts_padding``: the method depends on positions (windows, segments, recurrences). Rows are then
      handed over with their padding moved to the right end, so a row with padding inside or on the left
      gives exactly what it gives alone.
    * ``constant_state``: decoding keeps as much before the first token as after any other.
    * ``exact_gradient``: whether gradients are derivatives, for the class or an instance; no where a method was
      published with gradients cut off. `cab verify` then does not compare the two.
    * ``autocast_dtypes``: lower precisions in which it works under ``torch.autocast``.
    * ``float32_devices``: where it works in float32 too, in which `cab verify` runs it.
    * ``reads_key``: False for a method whose weights come from targets and positions alone, so that in cross patterns
      the output depends on ``value`` and not on ``key``.
    * ``own_share``: how much of an output's change may come from its own token at initialisation. A method that is
      near its own value there by design says how near.
    * ``parameter_budget``: what it may add to a backbone, as a part of it. CAB's rule is a tenth; a method that
      was published with more says how much.

    Args:
        pattern: NS, CS, NC or CC.
        embed_dim: width D of inputs and outputs.
        num_heads: heads H; must divide ``embed_dim``.
        dropout: probability in [0, 1) of dropping an attention weight, where the method has weights.

    Raises:
        ValueError: for dimensions that do not fit.
    """

    attend: Callable[..., Tensor]
    reference: Callable[..., Tensor] | None = None

    autocast_dtypes: ClassVar[tuple[torch.dtype, ...]] = (torch.bfloat16, torch.float16)
    float32_devices: ClassVar[tuple[str, ...]] = ("cpu", "cuda")
    reads_key: ClassVar[bool] = True
    own_share: ClassVar[float] = 0.93
    parameter_budget: ClassVar[float] = 0.1
    exact_gradient: bool = True

    def __init__(self, *, pattern: Pattern | str, embed_dim: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__(pattern=pattern, embed_dim=embed_dim, num_heads=num_heads, dropout=dropout)
        self.use_reference = False  # tests switch it on to run the readable form

    @classmethod
    def softmax_limit(cls, _pattern: Pattern, _num_tokens: int) -> SoftmaxLimit | None:
        """Options with which it is softmax attention on that many tokens; None for a method that never is."""
        return None

    def draws(self, _query: Tensor, _key: Tensor, _padding: Padding) -> dict[str, Tensor]:
        """Random numbers of one call, from its inputs [B, N, D] and [B, M, D]."""
        return {}

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        query_padding_mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
    ) -> Tensor:
        """Attention of every target.

        Args:
            query: [B, N, D].
            key, value: [B, M, D] in cross patterns, None in self patterns.
            query_padding_mask, key_padding_mask: bool [B, N] and [B, M], True = padding. In a self pattern
                either one is the padding of the sequence.

        Returns:
            [B, N, D]; zero at padded targets.

        Raises:
            ValueError: with the shapes, for inputs that do not fit the pattern or each other.
        """
        check_inputs(self.pattern, query, key, value, query_padding_mask, key_padding_mask, self.embed_dim)
        if not self.pattern.is_cross:
            query_padding_mask = key_padding_mask = union(query_padding_mask, key_padding_mask)
        query, query_padding_mask, order = clean_rows(query, query_padding_mask, compacts=self.compacts_padding)
        if key is None or value is None:
            key = value = query
            key_padding_mask = query_padding_mask
        else:
            key, value, key_padding_mask = self.clean_source(key, value, key_padding_mask)
        compute = self._compute_rows if self.use_reference else self.compute
        output = compute(query, key, value, Padding(query_padding_mask, key_padding_mask))
        return restore_rows(without_padding(output, query_padding_mask), order)

    def compute(self, query: Tensor, key: Tensor, value: Tensor, padding: Padding) -> Tensor:
        """Project, split into heads, ``attend``, merge, project: [B, N, D] to [B, N, D]."""
        more = {**self.query_extras(query), **self.key_extras(key), **self.draws(query, key, padding)}
        if more:
            return self.out_proj(self.merge_heads(self.attend(*self.project(query, key, value), padding, **more)))
        # Spelled out, the heads belong to ``attend`` alone, which frees each once it is read.
        output = self.attend(
            self.split_heads(self.q_proj(query)),
            self.split_heads(self.k_proj(key)),
            self.split_heads(self.v_proj(value)),
            padding,
        )
        return self.out_proj(self.merge_heads(output))

    def compute_row(self, query: Tensor, key: Tensor, value: Tensor, draws: Mapping[str, Tensor]) -> Tensor:
        """:meth:`compute` of one row without padding by ``reference``: [n, D] and twice [m, D] to [n, D]."""
        if self.reference is None:
            raise NotImplementedError(f"{type(self).__name__} has no reference()")
        heads = self.project(query[None], key[None], value[None])
        extras = {**self.query_extras(query[None]), **self.key_extras(key[None])}
        extras = {name: x[0] for name, x in extras.items()}
        output = self.reference(*(x[0] for x in heads), **extras, **draws)
        return self.out_proj(self.merge_heads(output[None]))[0]

    def _compute_rows(self, query: Tensor, key: Tensor, value: Tensor, padding: Padding) -> Tensor:
        """Each row alone, in its readable form; a target without any key gets zero before the last projection."""
        draws = self.draws(query, key, padding)
        output = torch.zeros_like(query)
        for row in range(len(query)):
            targets, keys = (
                torch.ones_like(x[row, :, 0], dtype=torch.bool) if mask is None else ~mask[row]
                for x, mask in ((query, padding.query), (key, padding.key))
            )
            if not targets.any():
                continue
            if keys.any():
                own = {name: x[row] for name, x in draws.items()}
                found = self.compute_row(query[row, targets], key[row, keys], value[row, keys], own)
            else:
                found = self.out_proj(torch.zeros_like(query[row, targets]))
            output = output.index_put((torch.tensor(row, device=query.device), targets.nonzero()[:, 0]), found)
        return output
