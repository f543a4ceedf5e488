"""Third-party implementations of attentions. Each function builds a module with the options of its row in index.csv.

index.csv omits CS where an implementation depends on the future, as the chunks of Reformer do. Sizes of the layers of
flash-linear-attention are close to those of our layers, but not equal: they are compared by time and memory only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from cab.efficiency.subjects import Projections
from cab.errors import UserError
from cab.patterns import Pattern

# --- modules around the kernels and layers of others, called as module(query) or module(query, key, value) ------------

Core = Callable[[Tensor, Tensor, Tensor], Tensor]


class Projected(Projections):
    """``core(q, k, v)`` on heads [B, H, N, E] between the four linear maps."""

    core: Core

    def __init__(self, core: Core, embed_dim: int, num_heads: int) -> None:
        super().__init__(embed_dim)
        self.num_heads = num_heads
        self.core = core

    def forward(self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None) -> Tensor:
        key, value = (query if x is None else x for x in (key, value))
        q, k, v = (
            linear(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for linear, x in ((self.q_proj, query), (self.k_proj, key), (self.v_proj, value))
        )
        return self.out_proj(self.core(q, k, v).transpose(1, 2).flatten(-2))


def first_output(module: nn.Module, x: Tensor, *_: Tensor) -> Tensor:
    """Call a self attention, which may return a tuple that begins with the output."""
    output = module(x)
    return output[0] if isinstance(output, tuple) else output


class Other(nn.Module):
    """A module without projections of query, key, value and output, called as ``call(module, query, key, value)``.

    Args:
        multiple_of: the length must be a multiple of it.
    """

    def __init__(self, module: nn.Module, call: Callable[..., Tensor] = first_output, *, multiple_of: int = 1) -> None:
        super().__init__()
        self.module, self.call, self.multiple_of = module, call, multiple_of

    def forward(self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None) -> Tensor:
        require_multiple(query.shape[1], self.multiple_of)
        key, value = (query if x is None else x for x in (key, value))
        return self.call(self.module, query, key, value)


class Whole(Other):
    """A module with its own projections."""

    q_proj = k_proj = v_proj = True


def with_output(layer: nn.Module, embed_dim: int) -> nn.ModuleDict:
    """Return a layer of transformers and the output map, which belongs to another class there."""
    return nn.ModuleDict({"layer": layer, "out_proj": nn.Linear(embed_dim, embed_dim)})


def require(**options: tuple[object, object]) -> None:
    """Raise UserError for an option whose value is not the supported one: ``require(name=(value, supported))``."""
    for name, (value, supported) in options.items():
        if value != supported:
            raise UserError(f"{name}={value} is not supported")


def require_multiple(length: int, size: int) -> None:
    """Raise UserError for an unsupported length."""
    if length % size:
        raise UserError(f"the length must be a multiple of {size}, got {length}")


# --- softmax, kernels, landmarks, windows and gated attention units --------------------------------------------------


def multihead_attention(pattern: Pattern, embed_dim: int, num_heads: int) -> nn.Module:
    """Build ``torch.nn.MultiheadAttention``."""
    module = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)

    def call(module: nn.Module, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        mask = None
        if pattern is Pattern.CS:
            mask = nn.Transformer.generate_square_subsequent_mask(query.shape[1], query.device, query.dtype)
        return module(query, key, value, need_weights=False, attn_mask=mask, is_causal=mask is not None)[0]

    return Whole(module, call)


def of_kernel(backend: SDPBackend) -> Callable[..., nn.Module]:
    """Return a builder of softmax attention by one kernel of torch alone."""

    def build(pattern: Pattern, embed_dim: int, num_heads: int) -> nn.Module:
        def core(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(query, key, value, is_causal=pattern is Pattern.CS)

        return Projected(core, embed_dim, num_heads)

    return build


sdpa_flash, sdpa_cudnn = of_kernel(SDPBackend.FLASH_ATTENTION), of_kernel(SDPBackend.CUDNN_ATTENTION)


def performer(pattern: Pattern, embed_dim: int, num_heads: int, num_features: int) -> nn.Module:
    """Build performer-pytorch; its causal form depends on the future through its stabilizer."""
    core = import_module("performer_pytorch").FastAttention(
        embed_dim // num_heads, nb_features=num_features, causal=pattern is Pattern.CS
    )
    return Projected(core, embed_dim, num_heads)


def nystromformer(embed_dim: int, num_heads: int, num_landmarks: int, conv_kernel_size: int | None) -> nn.Module:
    """Build nystrom-attention."""
    module = import_module("nystrom_attention").NystromAttention(
        embed_dim,
        dim_head=embed_dim // num_heads,
        heads=num_heads,
        num_landmarks=num_landmarks,
        residual=conv_kernel_size is not None,
        residual_conv_kernel=conv_kernel_size or 1,
    )
    return Whole(module)


def local(pattern: Pattern, embed_dim: int, num_heads: int, window_size: int, extent: str) -> nn.Module:
    """Build local-attention."""
    width = window_size if extent == "per_side" else max(window_size // 2, 1)
    core = import_module("local_attention").LocalAttention(
        window_size=width,
        causal=pattern is Pattern.CS,
        autopad=True,
        exact_windowsize=True,
        use_rotary_pos_emb=False,
    )
    return Projected(core, embed_dim, num_heads)


def linear(pattern: Pattern, embed_dim: int, num_heads: int) -> nn.Module:
    """Build linear-attention-transformer."""
    package = import_module("linear_attention_transformer.linear_attention_transformer")

    def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # with larger buckets, a token does not attend to itself
        return package.causal_linear_attn(q, k, v, bucket_size=1)

    return Projected(causal if pattern is Pattern.CS else package.linear_attn, embed_dim, num_heads)


def linformer(pattern: Pattern, embed_dim: int, num_heads: int, max_length: int, num_landmarks: int) -> nn.Module:
    """Build linformer."""
    module = import_module("linformer").LinformerSelfAttention(embed_dim, max_length, k=num_landmarks, heads=num_heads)
    return Whole(module, lambda module, x, key, _value: module(x, key if pattern.is_cross else None))


def set_transformer(embed_dim: int, num_heads: int, num_inducing: int, feedforward: bool) -> nn.Module:
    """Build isab-pytorch, which has additional, small maps of the inducing points."""
    require(feedforward=(feedforward, False))
    if embed_dim != 64 * num_heads:
        raise UserError(f"head dimension {embed_dim // num_heads} is not supported (only 64)")
    module = import_module("isab_pytorch").ISAB(dim=embed_dim, heads=num_heads, num_latents=num_inducing)
    return Whole(module)


def gated_unit(pattern: Pattern, embed_dim: int, query_key_dim: int, group_size: int | None = None) -> nn.Module:
    """Build FLASH without its norm, which the backbone applies; for all pairs, or for groups of ``group_size``."""
    package = import_module("flash_pytorch.flash_pytorch")
    sizes = {"dim": embed_dim, "query_key_dim": query_key_dim, "norm_klass": nn.Identity}
    if group_size is None:
        return Other(package.GAU(**sizes, add_residual=False))
    turns = import_module("rotary_embedding_torch").RotaryEmbedding(min(32, query_key_dim // 2 * 2))
    is_causal = pattern is Pattern.CS
    return Other(package.FLASH(**sizes, group_size=group_size, causal=is_causal, rotary_pos_emb=turns))


# --- sparse attention and attention on shortened sequences ------------------------------------------------------------


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
    layer = with_output(package.modeling_longformer.LongformerSelfAttention(config, 0), embed_dim)

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

    layer = with_output(package.modeling_big_bird.BigBirdBlockSparseAttention(config, seed=0), embed_dim)
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
    layer = with_output(package.modeling_reformer.LSHSelfAttention(config), embed_dim)
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


# --- recurrent layers -------------------------------------------------------------------------------------------------


def of(module: str, name: str, **options: Any) -> Callable[[int, int], nn.Module]:
    """Return a builder of a layer; options of the width of a head are fractions of ``embed_dim / num_heads``."""

    def build(embed_dim: int, num_heads: int) -> nn.Module:
        sizes = {key: int(value * embed_dim / num_heads) for key, value in options.items() if isinstance(value, float)}
        kind = getattr(import_module(f"fla.layers.{module}"), name)
        return Whole(kind(hidden_size=embed_dim, layer_idx=0, **{"num_heads": num_heads} | options | sizes))

    return build


def mamba2(embed_dim: int, num_heads: int, state_size: int, short_convolution: int) -> nn.Module:
    """Build Mamba-2 of transformers in blocks of 64, which takes a quarter of time and memory of its default 256."""
    package = import_module("transformers.models.mamba2")
    config = package.Mamba2Config(
        hidden_size=embed_dim,
        num_heads=num_heads,
        head_dim=2 * embed_dim // num_heads,
        expand=2,
        state_size=state_size,
        n_groups=1,
        conv_kernel=short_convolution or 1,
        chunk_size=64,
        num_hidden_layers=1,
    )
    return Whole(package.modeling_mamba2.Mamba2Mixer(config, layer_idx=0))


heads = partial(of, head_dim=1.0)
wide_values = partial(of, head_dim=0.75, expand_v=2)

gla = of("gla", "GatedLinearAttention")
hgrn2 = of("hgrn2", "HGRN2Attention", expand_ratio=1.0)
retention = of("multiscale_retention", "MultiScaleRetention")
lightning = of("simple_gla", "SimpleGatedLinearAttention", expand_k=1, expand_v=1)
deltanet = of("delta_net", "DeltaNet")
gated_deltanet = wide_values("gated_deltanet", "GatedDeltaNet")
deltaproduct = wide_values("gated_deltaproduct", "GatedDeltaProduct")
comba = wide_values("comba", "Comba")
rwkv6 = of("rwkv6", "RWKV6Attention", expand_k=1, expand_v=1)
rwkv7 = of("rwkv7", "RWKV7Attention", head_dim=None, num_hidden_layers=12)
kda = heads("kda", "KimiDeltaAttention")
gated_deltanet_2 = heads("gdn2", "GatedDeltaNet2")
forgetting = of("forgetting_attn", "ForgettingAttention")
