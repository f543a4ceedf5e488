"""The mLSTM layer of xLSTM-7B (Beck et al. 2025): a matrix memory with an exponential input gate."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attentions.bases.recurrent import Extras, RecurrenceInputs, Recurrent
from attentions.kernels.chunks import Heads
from attentions.kernels.numerics import upcast
from cab import DecodeState, register_attention
from cab.attention import ConvolutionArguments, Decoded
from cab.claims import Claims

CAP = 15.0
"""Soft cap of the logits of both gates, which keeps exp(i) within the range of float32."""
NORMALIZER_EPS = 1e-6


@register_attention("mlstm", patterns="CS", complexity="n", paper="Beck et al. 2025")
class MLSTMAttention(Recurrent):
    """Compute C_t = f_t C_{t-1} + i_t k_t (x) v_t, n_t = f_t n_{t-1} + i_t k_t, h_t = q_t C_t / max(|q_t n_t|, 1).

    xLSTM, arXiv:2405.04517, Eqs. 19 to 27, in the form of xLSTM-7B, arXiv:2503.13427: i = exp(15 tanh(u W_i / 15)) and
    f = sigmoid(15 tanh(u W_f / 15)) have one number per head; q, divided by the root of its width, and k have half the
    width of ``embed_dim``. The denominator is increased by 1e-6 e^m, where m_t = max(m_{t-1} + log f_t, log i_t) and
    m_0 = 0 is the stabilizer of the public code. A layer norm per head, the factor sigmoid(u W_o) and ``out_proj``
    follow.

    The input gate starts almost closed (bias -10), the forget gates open (biases from 3 to 6), both without weights
    (attentions/defaults.csv).
    """

    norm_eps = 1e-6
    normalizes_heads_jointly = True  # the weight of the norm has all features of all heads
    claims = Claims(parameter_budget=0.1)

    def __init__(self, **common: Unpack[ConvolutionArguments]) -> None:
        super().__init__(key_expansion=0.5, gate=True, gain=None, out_gain=None, **common)
        self.input_proj = nn.Linear(self.embed_dim, self.num_heads)
        self.forget_proj = nn.Linear(self.embed_dim, self.num_heads)
        with torch.no_grad():
            biases = torch.tensor(-10.0), torch.linspace(3.0, 6.0, self.num_heads)
            for linear, bias in zip((self.input_proj, self.forget_proj), biases, strict=True):
                linear.weight.zero_()
                linear.bias.copy_(bias)

    def key_side_inputs(self, key: Tensor) -> dict[str, Tensor]:
        return {"input": self.input_proj(key), "forget": self.forget_proj(key)}

    def terms(self, query: Tensor, key: Tensor, value: Tensor, extras: Extras, _position: Tensor) -> RecurrenceInputs:
        """Compute q, k, the values [i v, i] and log f."""
        log_input, log_forget = log_gates(extras)
        weighted = F.pad(value, (0, 1), value=1.0) * log_input.exp().unsqueeze(-1).to(value.dtype)
        return RecurrenceInputs(query * self.key_width**-0.5, key, weighted, log_forget)

    def finish(self, output: Tensor, _value: Tensor, extras: Extras) -> Tensor:
        """Divide [q C, q n] by the normalizer, and apply norm and gate."""
        largest = upcast(output[..., -1:]).abs().clamp(min=1.0)
        hidden = output[..., :-1] / (largest + NORMALIZER_EPS * extras["stabilizer"].exp().unsqueeze(-1))
        return self.layer_norm(hidden.to(output.dtype)) * self.split_heads(extras["gate"]).sigmoid()

    def layer_norm(self, x: Tensor) -> Tensor:
        """Compute the layer norm of x [B, H, N, V] per head, with a weight per feature of each head."""
        assert self.norm_weight is not None
        weight = self.norm_weight.to(x.dtype).unflatten(0, (self.num_heads, 1, -1))
        return weight * F.layer_norm(x, x.shape[-1:], eps=self.norm_eps)

    def init_decode_state(self, batch_size: int, like: Tensor) -> DecodeState:
        """Return the state of the base class, with n as the last column of ``memory``, and ``stabilizer`` [B, H]."""
        state = super().init_decode_state(batch_size, like)
        memory = F.pad(state["memory"], (0, 1))
        return state | {"memory": memory, "stabilizer": memory.new_zeros(memory.shape[:2])}

    def decode_chunk(self, heads: Heads, padding: Tensor | None, state: DecodeState, extras: Extras) -> Decoded:
        """Run the recurrence for one chunk of tokens, and its stabilizer."""
        log_input, log_forget = log_gates(extras)
        if padding is not None:
            log_input = log_input.masked_fill(padding[:, None], -torch.inf)
            log_forget = log_forget.masked_fill(padding[:, None], 0.0)
        sums = log_forget.double().cumsum(-1)  # m - sums, a difference of large numbers, is at most 15
        largest = torch.cat([state["stabilizer"].unsqueeze(-1), log_input - sums], dim=-1).cummax(-1).values
        stabilizer = (largest[..., 1:] + sums).to(log_input.dtype)
        output, after = super().decode_chunk(heads, padding, state, {**extras, "stabilizer": stabilizer})
        last = torch.cat([state["stabilizer"].unsqueeze(-1), stabilizer], dim=-1)[..., -1]
        return output, after | {"stabilizer": last}

    def reference(self, query: Tensor, key: Tensor, value: Tensor, **extras: Tensor) -> Tensor:
        """Compute the stabilized recurrence of one row token by token, [H, n, ...] to [H, n, V]."""
        log_input, log_forget = (x[0] for x in log_gates({name: x[None] for name, x in extras.items()}))
        memory = value.new_zeros(self.num_heads, self.key_width, self.value_width)
        normalizer, m = value.new_zeros(self.num_heads, self.key_width), value.new_zeros(self.num_heads)
        outputs = []
        for t in range(query.shape[1]):
            before, m = m, torch.maximum(m + log_forget[:, t], log_input[:, t])
            forget, write = (m_t.exp().unsqueeze(-1) for m_t in (log_forget[:, t] + before - m, log_input[:, t] - m))
            written = write * key[:, t]
            memory = forget.unsqueeze(-1) * memory + written.unsqueeze(-1) * value[:, t].unsqueeze(-2)
            normalizer = forget * normalizer + written
            q = query[:, t] * self.key_width**-0.5
            largest = torch.maximum((q * normalizer).sum(-1).abs(), (-m).exp()) + NORMALIZER_EPS
            outputs.append(torch.einsum("hk,hkv->hv", q, memory) / largest.unsqueeze(-1))
        hidden = self.layer_norm(torch.stack(outputs, dim=1)[None])
        return (hidden * self.split_heads(extras["gate"][None]).sigmoid())[0]


def log_gates(extras: Extras) -> tuple[Tensor, Tensor]:
    """Return log i and log f [B, H, N] of the logits [B, N, H]."""
    # Contiguous: the compiler assumes that layout of the gradient.
    logits = (CAP * (upcast(extras[name]).transpose(1, 2).contiguous() / CAP).tanh() for name in ("input", "forget"))
    log_input, forget = logits
    return log_input, F.logsigmoid(forget)
