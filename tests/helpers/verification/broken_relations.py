"""Attentions with one defect each in rows, lengths, masks in low precision, gradients, initialization and decoding."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from tests.helpers.verification.mutations import Weighted, caught, defect
from tests.helpers.verification.sound_learning import Gated

# --- a bad row, and many rows --------------------------------------------------------------------------------


@defect("inputs", "NS", "bad_row")
def times_zero_over_batch(call):
    return call._replace(value=call.value + 0.0 * call.value.sum(0, keepdim=True))


@defect("weights", "NC", "bad_row")
def shifted_by_largest_of_batch(call):
    """A stable softmax, but for one logit of another row that is far larger."""
    logits = call.query @ call.key.mT * call.module.scale
    weights = (logits - logits.max().detach()).exp()
    return weights / weights.sum(-1, keepdim=True)


@caught("CS", "decode_bad_row")
class StepSharesScale(Gated):
    def step(self, query_t, state, *, query_padding_mask=None):
        scale = query_t.abs().max().clamp_min(1.0)
        output, state = super().step(query_t, state, query_padding_mask=query_padding_mask)
        return output * scale / scale, state


@defect("inputs", "CC", "bad_row")
def gradient_normalized_over_batch(call):
    if call.value.requires_grad:
        call.value.register_hook(lambda g: g * (g.norm() / g.norm()))
    return call


@caught("NS", "bad_row")
class PackedRowsShareZero(Weighted):
    def forward_packed(self, query, key=None, value=None, **ends):
        output = super().forward_packed(query, key, value, **ends)
        return output + 0.0 * output.sum()


@defect("output", "NS", "many_rows")
def rows_beyond_512_without_gradient(call):
    return torch.cat([call.result[:512], call.result[512:].detach()])


@defect("output", "NC", "many_rows")
def row_number_in_a_byte(call):
    rows = torch.arange(len(call.result)) % 256
    return torch.where((torch.arange(len(rows)) < 256)[:, None, None, None], call.result, call.result[rows])


@caught("CS", "decode_many_rows")
class StepReadsFirstRows(Gated):
    def decode(self, query, key, value, state, padding, **more):
        if len(query) > 32:
            state = {name: torch.cat([x[:32], x[: len(x) - 32]]) for name, x in state.items()}
        return super().decode(query, key, value, state, padding, **more)


@caught("CC", "decode_many_rows")
class PromptOfManyRows(Weighted):
    def prefill(self, query, state, *, query_padding_mask=None):
        output, state = super().prefill(query, state, query_padding_mask=query_padding_mask)
        return (output.roll(1, 0) if len(query) >= 40 and query.shape[1] == 1 else output), state


@caught("NS", "many_rows")
class HundredsOfSequences(Weighted):
    def forward_packed(self, query, key=None, value=None, **ends):
        output = super().forward_packed(query, key, value, **ends)
        return torch.cat([output[:512], 0.99 * output[512:]]) if len(ends["query_cu_seqlens"]) > 257 else output


# --- lengths -------------------------------------------------------------------------------------------------


@defect("output", "NS", "every_length")
def last_token_of_63_lost(call):
    return call.result * 0.9 if call.padding.key is None and call.query.shape[2] == 63 else call.result


@defect("weights", "CS", "every_length")
def rows_of_47_lose_a_key(call):
    if call.padding.key is None:
        return call.result
    counts = (~call.padding.key).sum(1)
    return torch.where((counts == 47)[:, None, None, None], call.result * 0.9, call.result)


@defect("output", "NC", "every_length")
def single_source_token(call):
    if call.padding.key is None:
        return call.result
    return torch.where(((~call.padding.key).sum(1) == 1)[:, None, None, None], 0.5 * call.result, call.result)


@defect("output", "NS", "every_length")
def small_heads_in_padded_batches(call):
    wrong = call.padding.key is not None and call.module.head_dim == 6 and call.query.shape[2] > 40
    return call.result * (1.01 if wrong else 1.0)


@defect("output", "CC", "every_length")
def padded_on_the_left(call):
    keys = call.padding.key
    if keys is None or keys.shape[1] < 66:
        return call.result
    return torch.where((keys[:, 0] & ~keys[:, 60])[:, None, None, None], 0.99 * call.result, call.result)


# --- masks in low precision ----------------------------------------------------------------------------------


def is_coarse(call):
    return call.query.dtype == torch.bfloat16


@defect("weights", "NS", "autocast_padding")
def mask_of_ten_under_autocast(call):
    """A mask value that is too small."""
    if call.padding.key is None or not torch.is_autocast_enabled("cpu"):
        return call.result
    return ((call.query @ call.key.mT * call.module.scale) - 2.0 * call.padding.key[:, None, None]).softmax(-1)


@defect("weights", "CS", "autocast_gradient")
def detached_mask_under_autocast(call):
    return call.result.detach() if torch.is_autocast_enabled("cpu") and call.padding.key is not None else call.result


class _Product(torch.autograd.Function):
    """A product whose backward pass multiplies float32 weights by a gradient in lower precision."""

    @staticmethod
    def forward(ctx, weights, value):
        ctx.save_for_backward(weights, value)
        return weights @ value

    @staticmethod
    def backward(ctx, gradient):
        weights, value = ctx.saved_tensors
        return gradient @ value.mT, weights.mT @ gradient


@caught("NS", "autocast_output autocast_gradient")
class MixesDtypesOutsideAutocast(Weighted):
    """Fails in the backward pass, which runs outside autocast."""

    def attend(self, query, key, value, padding):
        return _Product.apply(self.weights(query, key, padding).float(), value.float()).to(query.dtype)


@defect("weights", "NC", "module_in_bfloat16")
def mask_forgotten_in_bfloat16(call):
    if call.padding.key is None or not is_coarse(call):
        return call.result
    return (call.query @ call.key.mT * call.module.scale).softmax(-1)


@defect("output", "NS", "module_in_bfloat16")
def nan_at_masks_in_bfloat16(call):
    return call.result * torch.nan if call.padding.key is not None and is_coarse(call) else call.result


@caught("CS", "decode_after_prefill")
class PromptOf65(Gated):
    """A prompt that ends one token after a block, with padding."""

    def decode(self, query, key, value, state, padding, **more):
        output, new = super().decode(query, key, value, state, padding, **more)
        wrong = query.shape[2] == 65 and padding.key is not None
        return output, {name: 0.99 * x if wrong else x for name, x in new.items()}


# --- gradients that come in ----------------------------------------------------------------------------------


@defect("output", "NS", "gradient_of_residual")
def clamps_large_gradients(call):
    if call.result.requires_grad:
        call.result.register_hook(lambda g: g.clamp(-1e3, 1e3))
    return call.result


class ViewsGradient(torch.autograd.Function):
    @staticmethod
    def forward(_context, x):
        return x.clone()

    @staticmethod
    def backward(_context, gradient):
        return gradient.view(-1).view_as(gradient)


@caught("CS", "gradient_of_residual")
class WantsContiguousGradient(Weighted):
    def forward(self, query, key=None, value=None, **masks):
        return ViewsGradient.apply(super().forward(query, key, value, **masks))


class SquareWithoutSecond(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return x.square()

    @staticmethod
    def backward(context, gradient):
        return 2.0 * gradient * context.saved_tensors[0].detach()


@defect("inputs", "NS", "second_derivative")
def second_derivative_lost(call):
    return call._replace(value=SquareWithoutSecond.apply(call.value))


@caught("NC", "frozen_leaves")
class NeedsGradientOfQuery(Weighted):
    def forward(self, query, key=None, value=None, **masks):
        output = super().forward(query, key, value, **masks)
        return (
            output if query.requires_grad or not torch.is_grad_enabled() else output.detach() + self.out_proj.bias * 0
        )

    def compute(self, query, key, value, padding):
        return super().compute(query, key, value, padding)


@caught("CS", "frozen_leaves")
class FrozenBiasFreezesWeight(Weighted):
    def compute(self, query, key, value, padding):
        if not self.out_proj.bias.requires_grad:
            value = value.detach()
        return super().compute(query, key, value, padding)


# --- contents and merged states ------------------------------------------------------------------------------


@caught("NS", "contents_in_turn")
class RemembersBySum(Weighted):
    last = None

    def attend(self, query, key, value, padding):
        if torch.is_grad_enabled():
            return super().attend(query, key, value, padding)
        total = (query.shape, round(float(value.double().sum()), 3))
        if self.last is None or self.last[0] != total:
            self.last = total, super().attend(query, key, value, padding)
        return self.last[1]


@caught("NS", "contents_in_turn")
class RemembersByAddress(Weighted):
    last = None

    def forward(self, query, key=None, value=None, **masks):
        if torch.is_grad_enabled():
            return super().forward(query, key, value, **masks)
        if self.last is None or self.last[0] is not query:
            self.last = query, super().forward(query, key, value, **masks)
        return self.last[1]


@caught("CC", "contents_in_turn")
class RemembersFirstKey(Weighted):
    last = None

    def attend(self, query, key, value, padding):
        if self.training or torch.is_grad_enabled():
            return super().attend(query, key, value, padding)
        if self.last is None or not torch.equal(self.last[0], key[:, :, 0]) or self.last[1].shape != key.shape:
            self.last = key[:, :, 0].clone(), key.clone()
        return super().attend(query, self.last[1], value, padding)


@caught("CS", "merged_states")
class PositionOnModule(Gated):
    """The number of tokens is kept on the module, and its values decide."""

    count = 0

    def init_state(self, batch_size, **source):
        self.count = 0
        return super().init_state(batch_size, **source)

    def decode(self, query, key, value, state, padding, **more):
        output, new = super().decode(query, key, value, state, padding, **more)
        start, self.count = self.count, self.count + query.shape[2]
        return output * (1.0 + 0.01 * torch.arange(start, self.count)[:, None]), new


@caught("CS", "merged_states")
class AgeOfFirstRow(Gated):
    def init_decode_state(self, batch_size, like):
        return super().init_decode_state(batch_size, like) | {"age": like.new_zeros(batch_size)}

    def decode(self, query, key, value, state, padding, **more):
        output, new = super().decode(query, key, value, state, padding, **more)
        age = state["age"][:1] + torch.arange(query.shape[2])
        return output * (1.0 + 0.01 * age[:, None]), new | {"age": state["age"] + query.shape[2]}


# --- the untouched initialization ----------------------------------------------------------------------------


@defect("inputs", "NS", "zero_tokens")
def divided_by_norm(call):
    return call._replace(key=call.key / call.key.norm(dim=-1, keepdim=True))


@defect("inputs", "NC", "zero_tokens")
def root_of_square(call):
    return call._replace(value=call.value.square().sum(-1, keepdim=True).sqrt() * call.value)


@caught("CS", "zero_tokens")
class DividesByParameter(Weighted):
    def set_up(self):
        self.temperature = nn.Parameter(torch.zeros(()))

    def weights(self, query, key, padding):
        return super().weights(query / self.temperature, key, padding)


@defect("inputs", "CC", "zero_tokens")
def logarithm_of_size(call):
    return call._replace(value=call.value * call.value.abs().sum(-1, keepdim=True).log())


@caught("CS", "zero_tokens")
class StepDividesByToken(Gated):
    def step(self, query_t, state, *, query_padding_mask=None):
        output, state = super().step(query_t, state, query_padding_mask=query_padding_mask)
        return output * (query_t.norm() / query_t.norm()), state


# --- leaves of the graph -------------------------------------------------------------------------------------


@caught("NS", "graph_leaves")
class HiddenTensor(Weighted):
    def set_up(self):
        self.temperature = torch.ones((), requires_grad=True)

    def weights(self, query, key, padding):
        return super().weights(query * self.temperature, key, padding)


@caught("CS", "graph_leaves")
class ListOfTensors(Weighted):
    def set_up(self):
        self.scales = [torch.ones(self.head_dim, requires_grad=True)]

    def attend(self, query, key, value, padding):
        return super().attend(query, key, value * self.scales[0], padding)


@caught("NC", "graph_leaves")
class BufferWithGradient(Weighted):
    def set_up(self):
        self.register_buffer("scale_of_value", torch.ones(self.head_dim).requires_grad_())

    def attend(self, query, key, value, padding):
        return super().attend(query, key, value * self.scale_of_value, padding)


@defect("inputs", "NS", "graph_leaves")
def leaf_in_forward(call):
    return call._replace(value=call.value + torch.zeros(1, requires_grad=True))


@caught("CC", "graph_leaves")
class LinearInTuple(Weighted):
    """A list of modules that is no ``ModuleList``."""

    def set_up(self):
        self.maps = (nn.Linear(self.head_dim, self.head_dim),)

    def attend(self, query, key, value, padding):
        return super().attend(query, key, self.maps[0](value), padding)


# --- decoding in training mode -------------------------------------------------------------------------------


@caught("CS", "decode_in_training")
class NoStateInTraining(Gated):
    def decode(self, query, key, value, state, padding, **more):
        output, new = super().decode(query, key, value, state, padding, **more)
        return output, state if self.training else new


@caught("CS", "decode_in_training")
class PromptScaledInTraining(Gated):
    def prefill(self, query, state, *, query_padding_mask=None):
        output, state = super().prefill(query, state, query_padding_mask=query_padding_mask)
        return (1.01 * output if self.training and query.shape[1] > 1 else output), state


@caught("CC", "decode_in_training")
class SourceInTraining(Gated):
    def encode_source(self, key, value, padding, *, strength):
        return super().encode_source(key, value * (0.9 if self.training else 1.0), padding, strength=strength)


@caught("CS", "decode_in_training")
class StepDropsAlways(Gated):
    def step(self, query_t, state, *, query_padding_mask=None):
        output, state = super().step(query_t, state, query_padding_mask=query_padding_mask)
        return F.dropout(output, 0.1, self.training), state


@caught("CS", "decode_in_training")
class StepRaisesInTraining(Gated):
    def step(self, query_t, state, *, query_padding_mask=None):
        assert not self.training
        return super().step(query_t, state, query_padding_mask=query_padding_mask)
