"""Third-party implementations of softmax, kernel, landmark and window attention, and of gated attention units."""

from __future__ import annotations

from importlib import import_module

from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from wrappers import Other, Projected, Whole, require

from cab.errors import UserError
from cab.patterns import Pattern


def multihead_attention(pattern: Pattern, embed_dim: int, num_heads: int) -> nn.Module:
    """Build ``torch.nn.MultiheadAttention``."""
    module = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)

    def call(module: nn.Module, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        mask = None
        if pattern is Pattern.CS:
            mask = nn.Transformer.generate_square_subsequent_mask(query.shape[1], query.device, query.dtype)
        return module(query, key, value, need_weights=False, attn_mask=mask, is_causal=mask is not None)[0]

    return Whole(module, call)


def sdpa_flash(pattern: Pattern, embed_dim: int, num_heads: int) -> nn.Module:
    """Build softmax attention by torch's flash kernel alone."""
    return _one_kernel(SDPBackend.FLASH_ATTENTION, pattern, embed_dim, num_heads)


def sdpa_cudnn(pattern: Pattern, embed_dim: int, num_heads: int) -> nn.Module:
    """Build softmax attention by cuDNN's kernel alone."""
    return _one_kernel(SDPBackend.CUDNN_ATTENTION, pattern, embed_dim, num_heads)


def _one_kernel(backend: SDPBackend, pattern: Pattern, embed_dim: int, num_heads: int) -> nn.Module:
    def core(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(query, key, value, is_causal=pattern is Pattern.CS)

    return Projected(core, embed_dim, num_heads)


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
