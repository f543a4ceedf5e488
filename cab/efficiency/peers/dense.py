"""Third-party implementations of softmax, kernel, landmark and window attention, and of gated attention units."""

from __future__ import annotations

from importlib import import_module

from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from cab.efficiency.peers.peer import Make, Options, Other, Peer, Projected, Whole, require
from cab.errors import UserError
from cab.patterns import Pattern

NS, CS, NC, CC = Pattern


def multihead_attention(pattern: Pattern, embed_dim: int, num_heads: int, options: Options) -> nn.Module:  # noqa: ARG001
    """Build ``torch.nn.MultiheadAttention``."""
    module = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)

    def call(module: nn.Module, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        mask = None
        if pattern is Pattern.CS:
            mask = nn.Transformer.generate_square_subsequent_mask(query.shape[1], query.device, query.dtype)
        return module(query, key, value, need_weights=False, attn_mask=mask, is_causal=mask is not None)[0]

    return Whole(module, call)


def one_kernel(backend: SDPBackend) -> Make:
    """Return a builder of softmax attention with a single backend of torch."""

    def make(pattern: Pattern, embed_dim: int, num_heads: int, options: Options) -> nn.Module:  # noqa: ARG001
        def core(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(query, key, value, is_causal=pattern is Pattern.CS)

        return Projected(core, embed_dim, num_heads)

    return make


def performer(pattern: Pattern, embed_dim: int, num_heads: int, options: Options) -> nn.Module:
    """Build performer-pytorch."""
    core = import_module("performer_pytorch").FastAttention(
        embed_dim // num_heads, nb_features=options["num_features"], causal=pattern is Pattern.CS
    )
    return Projected(core, embed_dim, num_heads)


def nystromformer(pattern: Pattern, embed_dim: int, num_heads: int, options: Options) -> nn.Module:  # noqa: ARG001
    """Build nystrom-attention."""
    kernel = options["conv_kernel_size"]
    module = import_module("nystrom_attention").NystromAttention(
        embed_dim,
        dim_head=embed_dim // num_heads,
        heads=num_heads,
        num_landmarks=options["num_landmarks"],
        residual=kernel is not None,
        residual_conv_kernel=kernel or 1,
    )
    return Whole(module, lambda module, query, *_: module(query))


def local(pattern: Pattern, embed_dim: int, num_heads: int, options: Options) -> nn.Module:
    """Build local-attention."""
    width = options["window_size"] if options["extent"] == "per_side" else max(options["window_size"] // 2, 1)
    core = import_module("local_attention").LocalAttention(
        window_size=width,
        causal=pattern is Pattern.CS,
        autopad=True,
        exact_windowsize=True,
        use_rotary_pos_emb=False,
    )
    return Projected(core, embed_dim, num_heads)


def linear(pattern: Pattern, embed_dim: int, num_heads: int, options: Options) -> nn.Module:  # noqa: ARG001
    """Build linear-attention-transformer."""
    package = import_module("linear_attention_transformer.linear_attention_transformer")

    def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # with larger buckets, a token does not attend to itself
        return package.causal_linear_attn(q, k, v, bucket_size=1)

    return Projected(causal if pattern is Pattern.CS else package.linear_attn, embed_dim, num_heads)


def linformer(pattern: Pattern, embed_dim: int, num_heads: int, options: Options) -> nn.Module:
    """Build linformer."""
    require(options, share="none")
    module = import_module("linformer").LinformerSelfAttention(
        embed_dim, options["max_length"], k=options["num_landmarks"], heads=num_heads
    )
    return Whole(module, lambda module, x, key, _value: module(x, key if pattern.is_cross else None))


def set_transformer(pattern: Pattern, embed_dim: int, num_heads: int, options: Options) -> nn.Module:  # noqa: ARG001
    """Build isab-pytorch, which has additional, small maps of the inducing points."""
    require(options, feedforward=False)
    if embed_dim != 64 * num_heads:
        raise UserError("head dimension {embed_dim // num_heads} is not supported (only 64)")
    module = import_module("isab_pytorch").ISAB(dim=embed_dim, heads=num_heads, num_latents=options["num_inducing"])
    return Whole(module, lambda module, x, *_: module(x)[0])


def gated_unit(pattern: Pattern, embed_dim: int, num_heads: int, options: Options) -> nn.Module:  # noqa: ARG001
    """Build FLASH without its norm, which the backbone applies; all pairs, or groups if there is such an option."""
    package = import_module("flash_pytorch.flash_pytorch")
    sizes = {"dim": embed_dim, "query_key_dim": options["query_key_dim"], "norm_klass": nn.Identity}
    if "group_size" not in options:
        return Other(package.GAU(**sizes, add_residual=False), lambda module, x: module(x))
    turns = import_module("rotary_embedding_torch").RotaryEmbedding(min(32, options["query_key_dim"] // 2 * 2))
    is_causal = pattern is Pattern.CS
    module = package.FLASH(**sizes, group_size=options["group_size"], causal=is_causal, rotary_pos_emb=turns)
    return Other(module, lambda module, x: module(x))


PEERS = (
    Peer("vanilla", "torch", "torch", (NS, CS, NC, CC), multihead_attention),
    Peer("vanilla", "torch", "torch", (NS, CS, NC), one_kernel(SDPBackend.FLASH_ATTENTION), True, "sdpa-flash"),
    Peer("vanilla", "torch", "torch", (NS, CS, NC), one_kernel(SDPBackend.CUDNN_ATTENTION), True, "sdpa-cudnn"),
    Peer("performer", "performer-pytorch", "performer_pytorch", (NS, CS, NC), performer),
    Peer("nystromformer", "nystrom-attention", "nystrom_attention", (NS,), nystromformer),
    Peer("linformer", "linformer", "linformer", (NS, NC, CC), linformer),
    Peer("set_transformer", "isab-pytorch", "isab_pytorch", (NS,), set_transformer),
    Peer("flash_quad", "flash-pytorch", "flash_pytorch", (NS,), gated_unit),
    Peer("flash_gau", "flash-pytorch", "flash_pytorch", (NS, CS), gated_unit),
    Peer("local", "local-attention", "local_attention", (NS, CS), local),
    Peer("linear", "linear-attention-transformer", "linear_attention_transformer", (NS, CS, NC), linear),
)
"""The fastest correct implementation of each method. performer-pytorch's causal form depends on the future through its
stabilizer; it is included because there is no alternative."""
