"""Third-party implementations of sparse attention and of attention on shortened sequences."""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from cab.efficiency.peers.peer import Options, Other, Peer, Whole, WithOutput, require, require_multiple
from cab.errors import UserError
from cab.patterns import Pattern

NS, CS, NC, CC = Pattern


def longformer(pattern: Pattern, embed_dim: int, num_heads: int, options: Options) -> nn.Module:  # noqa: ARG001
    """Build Longformer of transformers."""
    require(options, dilation=1, share_global=False)
    count, window = options["num_globals"], options["window"]
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
        require_multiple(x.shape[1], 2 * window)
        mask = x.new_zeros(x.shape[:2])
        mask[:, :count] = 1e4
        output = module.layer(x, mask, mask < 0, mask > 0, count > 0)[0]
        return module.out_proj(output)

    return Whole(layer, call)


def bigbird(pattern: Pattern, embed_dim: int, num_heads: int, options: Options) -> nn.Module:  # noqa: ARG001
    """Build BigBird of transformers in training mode, because it reuses the first random blocks in evaluation."""
    require(options, num_window=3)
    size, shortest = options["block_size"], (5 + 2 * options["num_random"]) * options["block_size"]
    package = import_module("transformers.models.big_bird")
    config = package.BigBirdConfig(
        hidden_size=embed_dim,
        num_attention_heads=num_heads,
        block_size=size,
        num_random_blocks=options["num_random"],
        attention_probs_dropout_prob=0.0,
    )
    make_masks = package.modeling_big_bird.BigBirdModel.create_masks_for_block_sparse_attn
    masks: dict[tuple[int, ...], tuple[Tensor, ...]] = {}  # computed once, as in a network with several layers

    def call(module: Any, x: Tensor, *_: Tensor) -> Tensor:
        require_multiple(x.shape[1], size)
        if x.shape[1] <= shortest:
            raise UserError(f"full attention up to {shortest} tokens")
        if x.shape[:2] not in masks:
            masks[x.shape[:2]] = make_masks(x.new_ones(x.shape[:2]), size)
        blocked, band, of_queries, of_keys = masks[x.shape[:2]]
        module.layer.train()
        return module.out_proj(module.layer(x, band, of_queries, of_keys, blocked, blocked)[0])

    return Whole(WithOutput(package.modeling_big_bird.BigBirdBlockSparseAttention(config, seed=0), embed_dim), call)


def reformer_transformers(
    pattern: Pattern,  # noqa: ARG001
    embed_dim: int,
    num_heads: int,
    options: Options,
) -> nn.Module:
    """Build Reformer of transformers, which also attends to other buckets in a chunk and counts repeated keys twice."""
    package = import_module("transformers.models.reformer")
    config = package.ReformerConfig(
        hidden_size=embed_dim,
        num_attention_heads=num_heads,
        attention_head_size=embed_dim // num_heads,
        lsh_attn_chunk_length=options["chunk_size"],
        num_hashes=options["rounds"],
        num_buckets=options["num_buckets"],
        lsh_attention_probs_dropout_prob=0.0,
        is_decoder=False,
    )
    layer = WithOutput(package.modeling_reformer.LSHSelfAttention(config), embed_dim)

    def call(module: Any, x: Tensor) -> Tensor:
        require_multiple(x.shape[1], options["chunk_size"])
        return module.out_proj(module.layer(x).hidden_states)

    return Other(layer, call)


def reformer_pytorch(pattern: Pattern, embed_dim: int, num_heads: int, options: Options) -> nn.Module:  # noqa: ARG001
    """Build reformer-pytorch, restricted to equal buckets and without duplicates, with one bucket per chunk."""
    size = options["chunk_size"]
    module = import_module("reformer_pytorch").LSHSelfAttention(
        embed_dim,
        heads=num_heads,
        bucket_size=size,
        n_hashes=options["rounds"],
        full_attn_thres=0,
        attend_across_buckets=False,
        allow_duplicate_attention=False,
    )

    def call(module: Any, x: Tensor) -> Tensor:
        require_multiple(x.shape[1], 2 * size)
        return module(x)

    return Other(module, call)


def fnet(pattern: Pattern, embed_dim: int, num_heads: int, options: Options) -> nn.Module:  # noqa: ARG001
    """Build FNet of transformers."""
    require(options, norm="backward")
    package = import_module("transformers.models.fnet")
    module = package.modeling_fnet.FNetBasicFourierTransform(package.FNetConfig(hidden_size=embed_dim))
    return Other(module, lambda module, x: module(x)[0])


def routing(pattern: Pattern, embed_dim: int, num_heads: int, options: Options) -> nn.Module:  # noqa: ARG001
    """Build routing-transformer, whose local windows are blocks with their neighbors: block length is half a window."""
    require(options, normalize=True)
    window, clusters = options["window"], options["num_clusters"]
    block, local = max(window // 2, 1), num_heads // 2 if options["local_heads"] else 0
    module = import_module("routing_transformer.routing_transformer").SelfAttention(
        embed_dim,
        depth=1,
        max_seq_len=clusters * window,
        heads=num_heads,
        local_attn_heads=local,
        window_size=window,
        local_attn_window_size=block,
        rel_pos_emb=False,
        kmeans_ema_decay=options["decay"],
        commitment_factor=options["commitment"],
    )

    def call(module: Any, x: Tensor, *_: Tensor) -> Tensor:
        if local:
            require_multiple(x.shape[1], block)
        module.global_attn.window_size = min(
            -(-x.shape[1] // clusters), window
        )  # depends on the length, as in our layer
        return module(x)[0]

    return Whole(module, call)


def sinkhorn(pattern: Pattern, embed_dim: int, num_heads: int, options: Options) -> nn.Module:
    """Build sinkhorn-transformer; in CS, each block selects one earlier block from the products of all blocks."""
    size = options["block_size"]
    module = import_module("sinkhorn_transformer.sinkhorn_transformer").SinkhornSelfAttention(
        embed_dim,
        size,
        max_seq_len=None,
        heads=num_heads,
        causal=pattern is Pattern.CS,
        non_permutative=False,
        sinkhorn_iter=options["iterations"],
        temperature=options["temperature"],
    )

    def call(module: Any, x: Tensor, *_: Tensor) -> Tensor:
        require_multiple(x.shape[1], size)
        return module(x)

    return Whole(module, call)


def axial(pattern: Pattern, embed_dim: int, num_heads: int, options: Options) -> nn.Module:  # noqa: ARG001
    """Build axial-attention."""
    require(options, spread="heads")
    if num_heads % 2:
        raise UserError(f"num_heads={num_heads} is not supported (must be even)")
    module = import_module("axial_attention").AxialAttention(
        embed_dim, num_dimensions=2, heads=num_heads // 2, dim_heads=embed_dim // num_heads
    )

    def call(module: Any, x: Tensor, *_: Tensor) -> Tensor:
        width = options["width"] or math.ceil(math.sqrt(x.shape[1]))
        require_multiple(x.shape[1], width)
        return module(x.unflatten(1, (-1, width))).flatten(1, 2)

    return Whole(module, call)


def mca(pattern: Pattern, embed_dim: int, num_heads: int, options: Options) -> nn.Module:
    """Build memory-compressed-attention."""
    require(options, reduction="conv")
    module = import_module("memory_compressed_attention").MemoryCompressedAttention(
        embed_dim, heads=num_heads, causal=pattern is Pattern.CS, compression_factor=options["factor"]
    )
    return Whole(module, lambda module, x, *_: module(x))


def compressive(pattern: Pattern, embed_dim: int, num_heads: int, options: Options) -> nn.Module:  # noqa: ARG001
    """Build compressive-transformer-pytorch, segment by segment, with memories and relative position embeddings.

    The package disables the gradient of the key and value weights; the wrapper enables it again.
    """
    package = import_module("compressive_transformer_pytorch.compressive_transformer_pytorch")
    sizes = [options[name] for name in ("segment", "memory", "compressed")]
    module = package.SelfAttention(embed_dim, *sizes, cmem_ratio=options["factor"], heads=num_heads)
    if options["position"] == "relative":
        module.position = nn.Parameter(torch.zeros(num_heads, sum(sizes), embed_dim // num_heads))

    def call(module: Any, x: Tensor, *_: Tensor) -> Tensor:
        outputs, memories = [], None
        for segment in x.split(options["segment"], dim=1):
            output, memory, _ = module(segment, memories, getattr(module, "position", None))
            module.to_kv.weight.requires_grad_(True)
            outputs.append(output)
            memories = tuple(part.detach() for part in memory)
        return torch.cat(outputs, dim=1)

    return Whole(module, call)


def nsa(pattern: Pattern, embed_dim: int, num_heads: int, options: Options) -> nn.Module:  # noqa: ARG001
    """Build native-sparse-attention-pytorch, whose branches share keys and values; adds the token's own block."""
    width, size = embed_dim // num_heads, options["compress_size"]
    mlp = nn.Sequential(nn.Flatten(-2), nn.Linear(size * width, width), nn.ReLU(), nn.Linear(width, width))
    module = import_module("native_sparse_attention_pytorch").SparseAttention(
        embed_dim,
        dim_head=width,
        heads=num_heads,
        sliding_window_size=max(options["window_size"] - 1, 1),
        compress_block_size=size,
        compress_block_sliding_stride=options["compress_stride"],
        selection_block_size=options["block_size"],
        num_selected_blocks=options["num_blocks"] - 1,
        kv_heads=options["num_kv_heads"] or max(1, num_heads // 16),
        causal=True,
        norm=False,
        compress_mlp=mlp if options["compression"] == "mlp" else Means(),
    )
    return Whole(module, lambda module, x, *_: module(x))


class Means(nn.Module):
    """Mean over the tokens of a block, [..., b, E] to [..., E]."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=-2)


PEERS = (
    Peer("longformer", "transformers", "transformers", (NS,), longformer),
    Peer("bigbird", "transformers", "transformers", (NS,), bigbird),
    Peer("reformer", "transformers", "transformers", (NS,), reformer_transformers),
    Peer("reformer", "reformer-pytorch", "reformer_pytorch", (NS,), reformer_pytorch),
    Peer("fnet", "transformers", "transformers", (NS,), fnet),
    Peer("routing", "routing-transformer", "routing_transformer", (NS,), routing),
    Peer("sinkhorn", "sinkhorn-transformer", "sinkhorn_transformer", (NS, CS), sinkhorn),
    Peer("axial", "axial-attention", "axial_attention", (NS,), axial),
    Peer("mca", "memory-compressed-attention", "memory_compressed_attention", (NS, CS), mca),
    Peer("compressive", "compressive-transformer-pytorch", "compressive_transformer_pytorch", (CS,), compressive),
    Peer("nsa", "native-sparse-attention-pytorch", "native_sparse_attention_pytorch", (CS,), nsa),
)
"""CS is omitted where an implementation depends on the future, as Reformer's chunks and Routing's clusters do.

sinkhorn-transformer passes keys instead of sorted values in NS, which does not affect the time.
"""
