"""Defects that need a setup of their own: autocast, the compiler, a layout, dropout, one token, a mask."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from attentions.gla import GatedLinearAttention
from tests.helpers.verification import sound
from tests.helpers.verification.mutations import Method, Weighted, caught, defect


@caught("NS", "settings_untouched")
class SwitchesAutocastOff(Weighted):
    """Leaves autocast disabled."""

    def forward(self, query, **masks):
        output = super().forward(query, **masks)
        torch.set_autocast_enabled("cpu", False)
        return output


@defect("weights", "NS", "autocast_output")
def forgets_far_tokens_in_16_bits(call):
    is_far = torch.arange(call.result.shape[-1]) > 300
    return call.result.masked_fill(is_far, 0.0) if torch.is_autocast_enabled("cpu") else call.result


@defect("weights", "NS", "compiled_branch")
def scales_when_compiled(call):
    return call.result * 1.5 if torch.compiler.is_compiling() else call.result


@defect("weights", "CS", "training_is_evaluation")
def scales_where_it_drops(call):
    return call.result * (0.9 if call.module.weight_dropout else 1.0)


@caught("NC", "strided_inputs")
class ReadsMemory(Weighted):
    """Reads values in the order of memory."""

    def forward(self, query, key=None, value=None, **masks):
        value = value.as_strided(value.shape, (value.shape[1] * value.shape[2], value.shape[2], 1))
        return super().forward(query, key, value, **masks)


@caught("NC", "same_source")
class SelfAware(Weighted):
    """Skips the softmax if the source is the target."""

    def forward(self, query, key=None, value=None, **masks):
        output = super().forward(query, key, value, **masks)
        return output * 2.0 if key is query else output


@caught("NS", "inputs_untouched")
class RepairsTheMask(Weighted):
    """Makes one token of rows of padding alone real, in the caller's mask."""

    def forward(self, query, *, query_padding_mask=None, key_padding_mask=None):
        for mask in (query_padding_mask, key_padding_mask):
            if mask is not None:
                mask[mask.all(1), 0] = False
        return super().forward(query, query_padding_mask=query_padding_mask, key_padding_mask=key_padding_mask)


@caught("CS", "decode_after_prefill")
class PromptOfOne(GatedLinearAttention):
    """A prompt of one token leaves the state as it is; a step does not."""

    def prefill(self, query, state, **masks):
        output, after = super().prefill(query, state, **masks)
        return output, state if query.shape[1] == 1 and not self.steps else after

    def step(self, query_t, state, **masks):
        self.steps = True
        try:
            return super().step(query_t, state, **masks)
        finally:
            self.steps = False

    steps = False


@defect("weights", "NS", "padding_keeps_context")
def reads_nothing_with_a_mask(call):
    own = torch.eye(call.result.shape[-1])
    return call.result if call.padding.key is None else own.expand_as(call.result)


@caught("NS", "float32_kept")
class Halved(Method):
    """Enables autocast inside."""

    def attend(self, query, key, value, padding):  # noqa: ARG002
        with torch.autocast("cpu"):
            return F.scaled_dot_product_attention(query, key, value).to(query.dtype)


class _Exp(torch.autograd.Function):
    """Exp, whose backward pass reads its output in memory that the caller may overwrite."""

    @staticmethod
    def forward(ctx, x):
        ctx.output = x.exp()
        return ctx.output

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.output


@caught("NS", "gradient_of_residual")
class SavesItsOutput(sound.PlainAverage):
    """Does not save its output by save_for_backward."""

    def forward(self, query, **masks):
        return _Exp.apply(super().forward(query, **masks))


@caught("CS", "context_map")
class Forgets(GatedLinearAttention):
    """Every form forgets what is older than 128 tokens."""

    def update(self, terms, memory, form):
        count, outputs = terms.value.shape[2], []
        for start in range(0, count, 128):
            part = [None if x is None else x[:, :, start : start + 128] for x in terms]
            output, memory = super().update(type(terms)._make(part), torch.zeros_like(memory), form)
            outputs.append(output)
        return torch.cat(outputs, 2), memory
