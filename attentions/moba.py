"""MoBA (Lu et al. 2025): softmax attention to a few blocks of keys, which each target chooses by their means."""

from __future__ import annotations

from typing import Unpack

from attentions.dsa import SelectedAttention
from cab import register_attention
from cab.attention import CommonArguments
from cab.claims import NUM_TOKENS, Claims, softmax_if
from cab.registry.options import Positive


@register_attention("moba", patterns="CS", complexity="n^2", paper="Lu et al. 2025")
class BlockMixtureAttention(SelectedAttention):
    """Compute softmax(q_t K^T / sqrt(E)) V over the keys up to t of ``top_k`` blocks (Eq. 2 to 6).

    arXiv:2502.13189. A target takes its own block and, of the complete ones before it, those whose mean key has the
    largest product with its query; of equal products, the first. The choice has no gradient. With as many blocks as
    there are it is softmax attention, so below 1,536 tokens the default is ``vanilla``.

    This is ``dsa`` with ``scorer=keys local_blocks=1``. Decoding keeps every key and value.

    Args:
        block_size: keys of a block.
        top_k: blocks that a target takes, its own among them.
    """

    claims = Claims(softmax_limit=softmax_if(block_size=4, top_k=NUM_TOKENS))
    unused_parameters = ()

    def __init__(self, *, block_size: Positive = 512, top_k: Positive = 3, **common: Unpack[CommonArguments]) -> None:
        super().__init__(scorer="keys", block_size=block_size, top_k=top_k, local_blocks=1, **common)
