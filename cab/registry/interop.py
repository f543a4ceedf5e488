"""Registered attentions as layers of other libraries: flash-linear-attention and Hugging Face Transformers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from cab.attention import Attention, DecodeState
from cab.errors import UserError
from cab.patterns import Pattern
from cab.registry.build import build_attention
from cab.registry.names import is_stack


class FlaLayer(nn.Module):
    """A registered attention in pattern CS, with the interface of the layers of flash-linear-attention.

    It replaces the attention of a block in a model of fla. Padding on either side, packed sequences, prompts in chunks
    and beam search are supported.

    Args:
        name: name of a registered attention, or ``FILE.py:Class``.
        hidden_size: width D of inputs and outputs.
        num_heads: number of heads; must divide ``hidden_size``.
        layer_idx: index of the layer in the cache.
        options: other arguments of :func:`cab.build_attention`.

    Raises:
        UserError: the name is unknown, the attention does not support pattern CS, or an option or dimension is invalid.
    """

    def __init__(self, name: str, *, hidden_size: int, num_heads: int, layer_idx: int, **options: Any) -> None:
        super().__init__()
        check_is_one(name)
        self.layer_idx = layer_idx
        self.attention = build_attention(
            name, pattern=Pattern.CS, embed_dim=hidden_size, num_heads=num_heads, **options
        )

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool | None = False,
        *,
        cu_seqlens: Tensor | None = None,
        **_unused: Any,
    ) -> tuple[Tensor, None, Any]:
        """Compute the outputs of tokens that follow those in the cache.

        Args:
            hidden_states: [B, T, D].
            attention_mask: 0 at padding and 1 elsewhere, [B, L] with L >= T; the last T columns are used.
            past_key_values: cache of fla; read if it is given, and updated if ``use_cache`` is also true.
            use_cache: store the decode state after these tokens in ``past_key_values``.
            cu_seqlens: cumulative lengths [S + 1] of packed sequences, with B = 1; ``attention_mask`` is then ignored,
                and the cache contains S sequences.

        Returns:
            The outputs [B, T, D], zero at padding; None instead of attention weights; and ``past_key_values``.

        Raises:
            UserError: ``attention_mask`` or ``cu_seqlens`` does not fit ``hidden_states``.
        """
        batch_size, num_tokens, _ = hidden_states.shape
        compute: Callable[..., Tensor] = self.attention
        prefill: Callable[..., tuple[Tensor, DecodeState]] = self.attention.prefill
        if cu_seqlens is None:
            lengths: dict[str, Any] = {"query_padding_mask": padding_of_last_tokens(attention_mask, hidden_states)}
            tokens = hidden_states
        elif batch_size == 1:
            lengths, batch_size = {"query_cu_seqlens": cu_seqlens}, len(cu_seqlens) - 1
            tokens, compute, prefill = hidden_states[0], self.attention.forward_packed, self.attention.prefill_packed
        else:
            raise UserError(f"cu_seqlens requires hidden_states of shape [1, T, D], got {tuple(hidden_states.shape)}")
        if past_key_values is None:
            output = compute(tokens, **lengths)
        else:
            cached = past_key_values[self.layer_idx] if len(past_key_values) > self.layer_idx else None
            if cached is None or cached["recurrent_state"] is None:
                state = self.attention.init_state(batch_size, device=tokens.device, dtype=tokens.dtype)
            else:
                (state,) = cached["recurrent_state"]
            output, state = prefill(tokens, state, **lengths)
            if use_cache:  # the state is in a tuple because the cache does not accept a dict
                past_key_values.update(recurrent_state=(state,), layer_idx=self.layer_idx, offset=num_tokens)
        return output.reshape_as(hidden_states), None, past_key_values


def check_is_one(name: str) -> None:
    """Raise UserError for a stack, whose layers another library has to choose."""
    if is_stack(name):
        raise UserError(f"'{name}' is a stack of CAB's backbones: name the attention of this layer alone")


def padding_of_last_tokens(attention_mask: Tensor | None, hidden_states: Tensor) -> Tensor | None:
    """Return the padding [B, T] of the last T tokens, True at padding, from a mask [B, L] that is 0 at padding."""
    if attention_mask is None:
        return None
    num_tokens = hidden_states.shape[1]
    if attention_mask.dim() != 2 or attention_mask.shape[1] < num_tokens:
        raise UserError(
            f"attention_mask must have the shape [B, L] with L at least {num_tokens}, the number of tokens; got "
            f"{tuple(attention_mask.shape)}"
        )
    return attention_mask[:, -num_tokens:] == 0


MODULE = "cab_attention"
"""Name of the attention, with its own parameters, in each attention layer of the model."""


class ThirdOf(nn.Module):
    """Return one of three equal parts of the last dimension; replaces a projection."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index

    def forward(self, x: Tensor) -> Tensor:
        return x.chunk(3, dim=-1)[self.index]


def use_in_transformers(name: str, **options: Any) -> str:
    """Register an attention with transformers and return its name for ``attn_implementation``.

    Parameters of the attention itself are created in the first forward pass: run one before you create the optimizer.
    In cached decoding, the attention is recomputed over all cached keys and values.

    Args:
        name: name of a registered attention, or ``FILE.py:Class``.
        options: options of its constructor.

    Raises:
        UserError: transformers is not installed, or the attention cannot be computed from the heads of queries, keys
            and values alone.
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError as error:
        raise UserError(f"cannot import transformers ({error}); install it: `pip install transformers`") from error
    check_is_one(name)
    check_depends_on_heads(name, options)
    words = "_".join(["cab", name, *(f"{option}_{value}" for option, value in options.items())])
    entry = "".join(letter if letter.isalnum() else "_" for letter in words)
    entry = entry.replace("flash", "fl_ash")  # transformers requires a kernel for every name that contains "flash"

    def attend(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        is_causal: bool | None = None,
        **_unused: Any,
    ) -> tuple[Tensor, None]:
        if not hasattr(module, MODULE):
            causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
            pattern = Pattern.CS if causal else Pattern.NS
            _, num_heads, _, head_dim = query.shape
            module.add_module(MODULE, bare_attention(name, options, pattern, num_heads, head_dim).to(query))
        attention = module.get_submodule(MODULE).train(module.training)
        return attend_heads(attention, query, key, value, attention_mask, scaling), None

    AttentionInterface.register(entry, attend)
    AttentionMaskInterface.register(entry, mask_of_real_keys)
    return entry


def mask_of_real_keys(*, attention_mask: Tensor | None = None, **_unused: Any) -> Tensor | None:
    """Return the mask [B, M] of real keys, from which the attention derives padding; causality is its own."""
    return None if attention_mask is None or bool(attention_mask.all()) else attention_mask


def attend_heads(
    attention: nn.Module, query: Tensor, key: Tensor, value: Tensor, real: Tensor | None, scaling: float | None
) -> Tensor:
    """Return outputs [B, T, H, E] of the last T tokens, for queries [B, H, T, E] and keys and values [B, G, M, E].

    G divides H. ``real`` [B, M] is false at padding. ``scaling`` is the model's factor of query-key products, by
    default 1 / sqrt(E).
    """
    num_heads, num_tokens, head_dim = query.shape[1:]
    factor = 1.0 if scaling is None else scaling * math.sqrt(head_dim)
    earlier = query.new_zeros(*query.shape[:2], key.shape[2] - num_tokens, head_dim)
    key, value = (x.repeat_interleave(num_heads // x.shape[1], dim=1) for x in (key, value))
    heads = torch.cat([earlier, query * factor], dim=2), key, value
    inputs = torch.cat([x.transpose(1, 2).flatten(2) for x in heads], dim=-1)
    mask = None if real is None else ~real[:, : inputs.shape[1]].bool()
    output = attention(inputs, query_padding_mask=mask)
    return output[:, -num_tokens:].unflatten(-1, (num_heads, head_dim))


def bare_attention(name: str, options: Mapping[str, Any], pattern: Pattern, num_heads: int, head_dim: int) -> Attention:
    """Return an attention without projections: inputs are queries, keys and values side by side, [B, N, 3 D]."""
    width = num_heads * head_dim
    attention = build_attention(name, pattern=pattern, embed_dim=width, num_heads=num_heads, **options)
    attention.q_proj, attention.k_proj, attention.v_proj = (ThirdOf(index) for index in range(3))  # type: ignore[assignment]
    attention.out_proj = nn.Identity()  # type: ignore[assignment]  # of the merged heads
    attention.out_proj.in_features = width
    attention.embed_dim = 3 * width
    return attention


@torch.no_grad()
def check_depends_on_heads(name: str, options: Mapping[str, Any]) -> None:
    """Raise UserError if an output depends on more than its own query, and the keys and values up to it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            attention = bare_attention(name, options, Pattern.CS, 2, 16).eval()
            inputs = torch.randn(1, 33, 96)
            whole = attention(inputs)[:, -1]
            inputs[:, :-1, :32] = 0.0
            last = attention(inputs)[:, -1]
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f"attention '{name}' cannot run in transformers: it computes more than queries, keys and values from "
                f"its inputs ({type(error).__name__}); use it in a backbone of this project"
            ) from error
    if not torch.allclose(whole, last, atol=1e-5):
        raise UserError(
            f"attention '{name}' cannot run in transformers: an output depends on earlier queries, which the key-value "
            "cache does not contain; use it in a backbone of this project"
        )
