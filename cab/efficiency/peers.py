"""Other people's implementations of the same methods, for comparison; none is a requirement of this project.

Each is imported when it is built. A kernel that comes without projections sits between the four linear maps.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from cab.efficiency.setting import Setting
from cab.efficiency.subjects import AttentionSubject, Projections
from cab.patterns import Pattern

Options = Mapping[str, Any]
Core = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Peer:
    """An implementation that pip can install.

    Args:
        attention: the registered attention that it is compared with.
        package: what pip calls it.
        module: what Python imports.
        patterns: those in which its results are sound.
        make: builds it from pattern, width, heads and the attention's options; None where it has no such form.
        needs_cuda: it exists on a GPU alone.
    """

    attention: str
    package: str
    module: str
    patterns: tuple[Pattern, ...]
    make: Callable[[Pattern, int, int, Options], nn.Module]
    needs_cuda: bool = False

    @property
    def is_installed(self) -> bool:
        return find_spec(self.module) is not None

    @property
    def exists_here(self) -> bool:
        return torch.cuda.is_available() or not self.needs_cuda


@dataclass(frozen=True)
class PeerSubject:
    """A peer, built for the options of one of our subjects."""

    peer: Peer
    ours: AttentionSubject
    kind: str = "peer"

    @property
    def label(self) -> str:
        return f"{self.ours.label}@{self.peer.package}"

    @property
    def peer_of(self) -> str:
        return self.ours.label

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        return tuple(pattern for pattern in self.peer.patterns if pattern in self.ours.patterns)

    def build(self, pattern: Pattern, setting: Setting, *, dropout: float = 0.0) -> nn.Module:  # noqa: ARG002
        with contextlib.redirect_stdout(sys.stderr):  # some greet; tables go to stdout
            return self.peer.make(pattern, setting.embed_dim, setting.num_heads, self.ours.all_options(pattern))


class Projected(Projections):
    """``core(q, k, v)`` on heads [B, H, N, E], between the four linear maps."""

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


class Whole(nn.Module):
    """A module with projections of its own; ``call(module, query, key, value)`` calls it."""

    q_proj = k_proj = v_proj = True

    def __init__(self, module: nn.Module, call: Callable[[nn.Module, Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.module = module
        self.call = call

    def forward(self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None) -> Tensor:
        key, value = (query if x is None else x for x in (key, value))
        return self.call(self.module, query, key, value)


def multihead_attention(pattern: Pattern, embed_dim: int, num_heads: int, options: Options) -> nn.Module:  # noqa: ARG001
    module = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)

    def call(module: nn.Module, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        mask = None
        if pattern is Pattern.CS:
            mask = nn.Transformer.generate_square_subsequent_mask(query.shape[1], query.device, query.dtype)
        return module(query, key, value, need_weights=False, attn_mask=mask, is_causal=mask is not None)[0]

    return Whole(module, call)


def one_kernel(backend: SDPBackend) -> Callable[[Pattern, int, int, Options], nn.Module]:
    """Fused softmax attention by one of torch's kernels and by no other."""

    def make(pattern: Pattern, embed_dim: int, num_heads: int, options: Options) -> nn.Module:  # noqa: ARG001
        def core(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(query, key, value, is_causal=pattern is Pattern.CS)

        return Projected(core, embed_dim, num_heads)

    return make


def performer(pattern: Pattern, embed_dim: int, num_heads: int, options: Options) -> nn.Module:
    core = import_module("performer_pytorch").FastAttention(
        embed_dim // num_heads, nb_features=options["num_features"], causal=pattern is Pattern.CS
    )
    return Projected(core, embed_dim, num_heads)


def nystromformer(pattern: Pattern, embed_dim: int, num_heads: int, options: Options) -> nn.Module:  # noqa: ARG001
    kernel = options["conv_kernel_size"]
    module = import_module("nystrom_attention").NystromAttention(
        embed_dim,
        dim_head=embed_dim // num_heads,
        heads=num_heads,
        num_landmarks=options["num_landmarks"],
        residual=kernel is not None,
        residual_conv_kernel=kernel or 1,
    )
    return Whole(module, lambda module, query, key, value: module(query))  # noqa: ARG005


def local(pattern: Pattern, embed_dim: int, num_heads: int, options: Options) -> nn.Module:
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
    package = import_module("linear_attention_transformer.linear_attention_transformer")

    def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return package.causal_linear_attn(
            q, k, v, bucket_size=1
        )  # with larger ones a token does not see its own bucket

    return Projected(causal if pattern is Pattern.CS else package.linear_attn, embed_dim, num_heads)


NS, CS, NC, CC = Pattern
PEERS = (
    Peer("vanilla", "torch", "torch", (NS, CS, NC, CC), multihead_attention),
    Peer("vanilla", "sdpa-flash", "torch", (NS, CS, NC), one_kernel(SDPBackend.FLASH_ATTENTION), needs_cuda=True),
    Peer("vanilla", "sdpa-cudnn", "torch", (NS, CS, NC), one_kernel(SDPBackend.CUDNN_ATTENTION), needs_cuda=True),
    Peer("performer", "performer-pytorch", "performer_pytorch", (NS, CS, NC), performer),
    Peer("nystromformer", "nystrom-attention", "nystrom_attention", (NS,), nystromformer),
    Peer("local", "local-attention", "local_attention", (NS, CS), local),
    Peer("linear", "linear-attention-transformer", "linear_attention_transformer", (NS, CS, NC), linear),
)
"""Sound and faster than others of the same method where several exist. performer-pytorch's causal form sees the
future through its stabiliser; it is timed because there is no other."""


def find_peers(subjects: Iterable[AttentionSubject]) -> tuple[list[PeerSubject], list[str]]:
    """Peers of these attentions that are installed, and lines about those that are not or do not exist."""
    found, notes, without = [], [], []
    for subject in subjects:
        peers = [peer for peer in PEERS if peer.attention == subject.name and peer.exists_here]
        if not peers:
            without.append(subject.label)
        for peer in peers:
            if peer.is_installed:
                found.append(PeerSubject(peer, subject))
            else:
                notes.append(f"{subject.label}: {peer.package} is not installed (pip install {peer.package})")
    if without:
        notes.append(f"no implementation that pip can install is known for: {', '.join(without)}")
    return found, notes
