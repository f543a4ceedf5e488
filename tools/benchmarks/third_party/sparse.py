"""Third-party implementations of sparse attention and of attention on shortened sequences.

index.csv omits CS where an implementation depends on the future, as Reformer's chunks and Routing's clusters do.
"""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from wrappers import Other, Whole, WithOutput, require, require_multiple

from cab.errors import UserError
from cab.patterns import Pattern


def longformer(
    embed_dim: int, num_heads: int, window: int, num_globals: int, dilation: int, share_global: bool
) -> nn.Module:
    """Build Longformer of transformers."""
    require(dilation=(dilation, 1), share_global=(share_global, False))
    if not window:
        raise UserError("window=0 is not supported")
    package = import_module("transformers.models.longformer")
    config = package.LongformerConfig(
        hidden_size=embed_dim,
        num_attention_heads=num_heads,
        attention_window=[2 * window],
        attention_probs_dropout_prob=0.0,
    )
    layer = WithOutput(package.modeling_longformer.LongformerSelfAttention(config, 0), embed_dim)

    def call(module: Any, x: Tensor, *_: Tensor) -> Tensor:
        mask = x.new_zeros(x.shape[:2])
        mask[:, :num_globals] = 1e4
        output = module.layer(x, mask, mask < 0, mask > 0, num_globals > 0)[0]
        return module.out_proj(output)

    return Whole(layer, call, multiple_of=2 * window)


def bigbird(embed_dim: int, num_heads: int, block_size: int, num_random: int, num_window: int) -> nn.Module:
    """Build BigBird of transformers in training mode, because it reuses the first random blocks in evaluation."""
    require(num_window=(num_window, 3))
    shortest = (5 + 2 * num_random) * block_size
    package = import_module("transformers.models.big_bird")
    config = package.BigBirdConfig(
        hidden_size=embed_dim,
        num_attention_heads=num_heads,
        block_size=block_size,
        num_random_blocks=num_random,
        attention_probs_dropout_prob=0.0,
    )
    make_masks = package.modeling_big_bird.BigBirdModel.create_masks_for_block_sparse_attn
    masks: dict[tuple[int, ...], tuple[Tensor, ...]] = {}  # computed once, as in a network with several layers

    def call(module: Any, x: Tensor, *_: Tensor) -> Tensor:
        if x.shape[1] <= shortest:
            raise UserError(f"full attention up to {shortest} tokens")
        if x.shape[:2] not in masks:
            masks[x.shape[:2]] = make_masks(x.new_ones(x.shape[:2]), block_size)
        blocked, band, of_queries, of_keys = masks[x.shape[:2]]
        module.layer.train()
        return module.out_proj(module.layer(x, band, of_queries, of_keys, blocked, blocked)[0])

    layer = WithOutput(package.modeling_big_bird.BigBirdBlockSparseAttention(config, seed=0), embed_dim)
    return Whole(layer, call, multiple_of=block_size)


def reformer_transformers(
    embed_dim: int, num_heads: int, chunk_size: int, rounds: int, num_buckets: int | None
) -> nn.Module:
    """Build Reformer of transformers, which also attends to other buckets in a chunk and counts repeated keys twice."""
    package = import_module("transformers.models.reformer")
    config = package.ReformerConfig(
        hidden_size=embed_dim,
        num_attention_heads=num_heads,
        attention_head_size=embed_dim // num_heads,
        lsh_attn_chunk_length=chunk_size,
        num_hashes=rounds,
        num_buckets=num_buckets,
        lsh_attention_probs_dropout_prob=0.0,
        is_decoder=False,
    )
    layer = WithOutput(package.modeling_reformer.LSHSelfAttention(config), embed_dim)
    call = lambda module, x, *_: module.out_proj(module.layer(x).hidden_states)  # noqa: E731
    return Other(layer, call, multiple_of=chunk_size)


def reformer_pytorch(embed_dim: int, num_heads: int, chunk_size: int, rounds: int) -> nn.Module:
    """Build reformer-pytorch, restricted to equal buckets and without duplicates, with one bucket per chunk."""
    module = import_module("reformer_pytorch").LSHSelfAttention(
        embed_dim,
        heads=num_heads,
        bucket_size=chunk_size,
        n_hashes=rounds,
        full_attn_thres=0,
        attend_across_buckets=False,
        allow_duplicate_attention=False,
    )
    return Other(module, multiple_of=2 * chunk_size)


def fnet(embed_dim: int) -> nn.Module:
    """Build FNet of transformers."""
    package = import_module("transformers.models.fnet")
    return Other(package.modeling_fnet.FNetBasicFourierTransform(package.FNetConfig(hidden_size=embed_dim)))


def routing(
    embed_dim: int,
    num_heads: int,
    window: int,
    num_clusters: int,
    local_heads: bool,
    normalize: bool,
    decay: float,
    commitment: float,
) -> nn.Module:
    """Build routing-transformer, whose local windows are blocks with their neighbors: block length is half a window."""
    require(normalize=(normalize, True))
    block, num_local = max(window // 2, 1), num_heads // 2 if local_heads else 0
    module = import_module("routing_transformer.routing_transformer").SelfAttention(
        embed_dim,
        depth=1,
        max_seq_len=num_clusters * window,
        heads=num_heads,
        local_attn_heads=num_local,
        window_size=window,
        local_attn_window_size=block,
        rel_pos_emb=False,
        kmeans_ema_decay=decay,
        commitment_factor=commitment,
    )

    def call(module: Any, x: Tensor, *_: Tensor) -> Tensor:
        module.global_attn.window_size = min(-(-x.shape[1] // num_clusters), window)  # as in our layer
        return module(x)[0]

    return Whole(module, call, multiple_of=block if num_local else 1)


def sinkhorn(
    pattern: Pattern, embed_dim: int, num_heads: int, block_size: int, iterations: int, temperature: float
) -> nn.Module:
    """Build sinkhorn-transformer; in CS, each block selects one earlier block from the products of all blocks.

    In NS, the package passes keys instead of sorted values, which does not affect the time.
    """
    module = import_module("sinkhorn_transformer.sinkhorn_transformer").SinkhornSelfAttention(
        embed_dim,
        block_size,
        max_seq_len=None,
        heads=num_heads,
        causal=pattern is Pattern.CS,
        non_permutative=False,
        sinkhorn_iter=iterations,
        temperature=temperature,
    )
    return Whole(module, multiple_of=block_size)


def axial(embed_dim: int, num_heads: int, width: int | None, spread: str) -> nn.Module:
    """Build axial-attention."""
    require(spread=(spread, "heads"))
    if num_heads % 2:
        raise UserError(f"num_heads={num_heads} is not supported (must be even)")
    module = import_module("axial_attention").AxialAttention(
        embed_dim, num_dimensions=2, heads=num_heads // 2, dim_heads=embed_dim // num_heads
    )

    def call(module: Any, x: Tensor, *_: Tensor) -> Tensor:
        columns = width or math.ceil(math.sqrt(x.shape[1]))
        require_multiple(x.shape[1], columns)
        return module(x.unflatten(1, (-1, columns))).flatten(1, 2)

    return Whole(module, call)


def mca(pattern: Pattern, embed_dim: int, num_heads: int, factor: int, reduction: str) -> nn.Module:
    """Build memory-compressed-attention."""
    require(reduction=(reduction, "conv"))
    module = import_module("memory_compressed_attention").MemoryCompressedAttention(
        embed_dim, heads=num_heads, causal=pattern is Pattern.CS, compression_factor=factor
    )
    return Whole(module)


def compressive(
    embed_dim: int, num_heads: int, segment: int, memory: int, compressed: int, factor: int, position: str
) -> nn.Module:
    """Build compressive-transformer-pytorch, segment by segment, with memories and relative position embeddings.

    The package disables the gradient of the key and value weights; the wrapper enables it again.
    """
    package = import_module("compressive_transformer_pytorch.compressive_transformer_pytorch")
    sizes = [segment, memory, compressed]
    module = package.SelfAttention(embed_dim, *sizes, cmem_ratio=factor, heads=num_heads)
    if position == "relative":
        module.position = nn.Parameter(torch.zeros(num_heads, sum(sizes), embed_dim // num_heads))

    def call(module: Any, x: Tensor, *_: Tensor) -> Tensor:
        outputs, memories = [], None
        for tokens in x.split(segment, dim=1):
            output, updated, _ = module(tokens, memories, getattr(module, "position", None))
            module.to_kv.weight.requires_grad_(True)
            outputs.append(output)
            memories = tuple(x.detach() for x in updated)
        return torch.cat(outputs, dim=1)

    return Whole(module, call)


def nsa(
    embed_dim: int,
    num_heads: int,
    block_size: int,
    num_blocks: int,
    window_size: int,
    compress_size: int,
    compress_stride: int,
    compression: str,
    num_kv_heads: int | None,
) -> nn.Module:
    """Build native-sparse-attention-pytorch, whose branches share keys and values; adds the token's own block."""
    width = embed_dim // num_heads
    mlp = nn.Sequential(nn.Flatten(-2), nn.Linear(compress_size * width, width), nn.ReLU(), nn.Linear(width, width))
    module = import_module("native_sparse_attention_pytorch").SparseAttention(
        embed_dim,
        dim_head=width,
        heads=num_heads,
        sliding_window_size=max(window_size - 1, 1),
        compress_block_size=compress_size,
        compress_block_sliding_stride=compress_stride,
        selection_block_size=block_size,
        num_selected_blocks=num_blocks - 1,
        kv_heads=num_kv_heads or max(1, num_heads // 16),
        causal=True,
        norm=False,
        compress_mlp=mlp if compression == "mlp" else Means(),
    )
    return Whole(module)


class Means(nn.Module):
    """Mean over the tokens of a block, [..., b, E] to [..., E]."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=-2)
