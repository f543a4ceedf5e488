"""ABC: attention with bounded-memory control (Peng et al. 2022), the fast linear form that CAB uses.

Shapes: B batch, H heads, N targets, M keys, E width of a head, r memory slots.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from attentions.kernels.precision import no_weight, wide
from attentions.kernels.running_memory import causal_abc
from cab import Attention, Pattern, register_attention
from cab.attention import Padding, State
from cab.errors import UserError
from cab.input_checks import check_decoding, check_tokens
from cab.padding import compact_rows, take_rows, without_padding


@register_attention("abc", patterns="NS CS NC CC", complexity="n", paper="Peng et al. 2022")
class ABCAttention(Attention):
    """softmax(q K~^T / sqrt(E)) V~ over r memory slots  (CAB, Eq. 20).

    A slot holds a weighted mean of the keys, K~ = softmax over positions of (k C_k), transposed, times k,
    and one of the values, V~, likewise with C_v. In pattern CS the memory of target t is made of positions
    up to t: the mean runs along. (The code released with CAB keeps only the last term of that running sum.)

    The state of CS is of constant size: for keys and for values, r means and the logarithms of their total
    weights. That of CC is the memory of the source, formed once. There are no attention weights over tokens
    to drop, so ``dropout`` is not used (as released).

    Args:
        num_landmarks: memory slots r of each head.

    Raises:
        ValueError: for ``num_landmarks`` below 1.
    """

    def __init__(
        self,
        *,
        pattern: Pattern | str,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        num_landmarks: int = 16,
    ) -> None:
        super().__init__(pattern=pattern, embed_dim=embed_dim, num_heads=num_heads, dropout=dropout)
        if num_landmarks < 1:
            raise UserError(f"num_landmarks must be at least 1, got {num_landmarks}")
        self.compacts_padding = self.pattern is Pattern.CS  # so that a row begins with a token
        self.num_landmarks = num_landmarks
        self.compress_k = nn.Parameter(torch.empty(self.head_dim, num_landmarks))
        self.compress_v = nn.Parameter(torch.empty(self.head_dim, num_landmarks))
        for weight in (self.compress_k, self.compress_v):
            nn.init.xavier_uniform_(weight, gain=2**-0.5)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding: Padding) -> Tensor:
        key_padding_mask = padding.key
        if self.pattern is Pattern.CS:
            return self.attend_causally(query, key, value, key_padding_mask, None)[0]
        return self.read(query, *self.memory(key, value, key_padding_mask))

    def reference(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        query_padding_mask: Tensor | None,  # noqa: ARG002
        key_padding_mask: Tensor | None,
    ) -> Tensor:
        """Every target's memory from its own prefix (CS) or from all keys, in the words of Eq. 20."""
        n, m = query.shape[2], key.shape[2]
        padding = key.new_zeros(key.shape[0], m, dtype=torch.bool) if key_padding_mask is None else key_padding_mask

        def mean(x: Tensor, weight: Tensor, padding: Tensor) -> Tensor:
            logits = (x @ weight).masked_fill(padding[:, None, :, None], no_weight())
            return logits.softmax(dim=2).transpose(-2, -1) @ x.masked_fill(padding[:, None, :, None], 0.0)

        outputs = []
        for t in range(n):
            past = t + 1 if self.pattern is Pattern.CS else m
            keys = mean(key[:, :, :past], self.compress_k, padding[:, :past])
            values = mean(value[:, :, :past], self.compress_v, padding[:, :past])
            logits = query[:, :, t : t + 1] @ keys.transpose(-2, -1) * self.scale
            outputs.append(logits.softmax(dim=-1) @ values)
        return torch.cat(outputs, dim=2)

    # --- a memory of all keys: NS, NC, CC ----------------------------------------------------------------

    def memory(self, key: Tensor, value: Tensor, padding: Tensor | None) -> tuple[Tensor, Tensor]:
        """K~ and V~ [B, H, r, E]; zero in a row whose keys are all padding."""
        with torch.autocast(key.device.type, enabled=False):
            keys = WeightedMeans.apply(wide(key), wide(self.compress_k), padding)
            values = WeightedMeans.apply(wide(value), wide(self.compress_v), padding)
        return keys.to(key.dtype), values.to(value.dtype)

    def read(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """softmax(q K~^T / sqrt(E)) V~."""
        return F.scaled_dot_product_attention(query, keys, values)

    # --- a memory that grows with the target: CS ---------------------------------------------------------

    def attend_causally(
        self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None, state: State | None
    ) -> tuple[Tensor, State]:
        """Output and the new state."""
        state = state or self.empty_state(query.shape[0], query.device)
        mass, mean = (torch.stack([state[f"{name}_{what}"] for name in ("key", "value")]) for what in ("mass", "mean"))
        compress = torch.stack([self.compress_k, self.compress_v])
        output, masses, means = causal_abc(query, key, value, compress, padding, mass, mean)
        return output, {
            "key_mass": masses[0],
            "key_mean": means[0],
            "value_mass": masses[1],
            "value_mean": means[1],
        }

    # --- decoding ----------------------------------------------------------------------------------------

    def empty_state(self, batch_size: int, device: torch.device | str | None) -> State:
        """No token seen: no weight, and means of zero, at least in float32 whatever the precision of the tokens."""
        mean = wide(self.compress_k).new_zeros(
            batch_size, self.num_heads, self.num_landmarks, self.head_dim, device=device
        )
        mass = torch.full(mean.shape[:-1], no_weight(), device=device, dtype=torch.float64)
        return {"key_mass": mass, "key_mean": mean, "value_mass": mass, "value_mean": mean}

    def init_state(
        self,
        batch_size: int,
        *,
        key: Tensor | None = None,
        value: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,  # noqa: ARG002
    ) -> State:
        """CS: masses [B, H, r], logarithms, and means [B, H, r, E] of nothing. CC: K~ and V~ of the source."""
        check_decoding(self.pattern, batch_size, key, value, key_padding_mask, self.embed_dim)
        if key is None or value is None:
            return self.empty_state(batch_size, device or self.compress_k.device)
        key = self.split_heads(self.k_proj(without_padding(key, key_padding_mask)))
        value = self.split_heads(self.v_proj(without_padding(value, key_padding_mask)))
        keys, values = self.memory(key, value, key_padding_mask)
        return {"keys": keys, "values": values}

    def state_bytes(self, num_tokens: int) -> int:
        if self.pattern is not Pattern.CS:
            return super().state_bytes(num_tokens)
        return sum(tensor.nbytes for tensor in self.empty_state(1, None).values())

    def prefill(self, query: Tensor, state: State, *, query_padding_mask: Tensor | None = None) -> tuple[Tensor, State]:
        check_tokens(query, query_padding_mask, self.embed_dim)
        tokens, mask, order = compact_rows(without_padding(query, query_padding_mask), query_padding_mask)
        heads = self.split_heads(self.q_proj(tokens))
        if self.pattern is Pattern.CS:
            key, value = self.split_heads(self.k_proj(tokens)), self.split_heads(self.v_proj(tokens))
            heads, state = self.attend_causally(heads, key, value, mask, state)
        else:
            heads = self.read(heads, state["keys"], state["values"])
        output = without_padding(self.out_proj(self.merge_heads(heads)), mask)
        return (output if order is None else take_rows(output, order.argsort(dim=1))), state


class WeightedMeans(torch.autograd.Function):
    """softmax over positions of (x weight), transposed, times x: [B, H, M, E] to [B, H, r, E].

    The backward pass forms the weights anew, and both gradients to x in one product.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, padding: Tensor | None) -> Tensor:
        logits = weight.T @ x.transpose(-2, -1)
        if padding is not None:
            logits.masked_fill_(padding[:, None, None], no_weight())
        mass = logits.logsumexp(dim=-1, keepdim=True)
        mean = logits.sub_(mass).exp_() @ x
        if padding is not None:
            mean.masked_fill_(padding.all(dim=1)[:, None, None, None], 0.0)
        ctx.save_for_backward(x, weight, padding, mass, mean)
        return mean

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, padding, mass, mean = ctx.saved_tensors
        if padding is not None:
            grad = grad.masked_fill(padding.all(dim=1)[:, None, None, None], 0.0)
        columns = weight.T.expand_as(grad)
        both = torch.cat([columns, grad], dim=-2) @ x.transpose(-2, -1)
        weights, logits_grad = both.chunk(2, dim=-2)
        if padding is not None:
            weights.masked_fill_(padding[:, None, None], no_weight())
        weights.sub_(mass).exp_()
        logits_grad.sub_((grad * mean).sum(dim=-1, keepdim=True)).mul_(weights)
        x_grad = both.transpose(-2, -1) @ torch.cat([grad, columns], dim=-2)
        return x_grad, (logits_grad @ x).sum(dim=(0, 1)).T, None
