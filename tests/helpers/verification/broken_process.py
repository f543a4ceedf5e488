"""Attentions with one defect each in what surrounds a call: the process, memory, weights, copies, hooks and layouts."""

from __future__ import annotations

import os
import warnings

import torch
from torch import nn
from torch.nn import functional as F

from tests.helpers.verification.mutations import Weighted, caught, defect
from tests.helpers.verification.sound_learning import Gated

# --- process state -------------------------------------------------------------------------------------------


@caught("CS", "settings_untouched")
class StepDisablesGradients(Weighted):
    def step(self, query_t, state, *, query_padding_mask=None):
        torch.set_grad_enabled(False)
        return super().step(query_t, state, query_padding_mask=query_padding_mask)


@caught("NS", "generators_untouched")
class SeedsInConstructor(Weighted):
    def set_up(self):
        torch.manual_seed(0)


@caught("CC", "generators_untouched")
class PromptDraws(Weighted):
    def prefill(self, query, state, *, query_padding_mask=None):
        output, state = super().prefill(query, state, query_padding_mask=query_padding_mask)
        return output + 0.0 * torch.rand(()), state


@defect("output", "NS", "settings_untouched")
def hides_warnings(call):
    warnings.simplefilter("ignore")
    return call.result


@defect("output", "NC", "settings_untouched")
def environment_in_backward(call):
    if call.result.requires_grad:
        call.result.register_hook(lambda _: os.environ.update(CAB_TEST_LAST=str(call.query.shape[2])))
    return call.result


# --- uninitialized memory ------------------------------------------------------------------------------------


@caught("CS", "uninitialized_memory")
class StateOfEmptyMemory(Gated):
    """Zero times whatever was there."""

    def init_decode_state(self, batch_size, like):
        state = super().init_decode_state(batch_size, like)
        return state | {"keys": 0.0 * torch.empty_like(state["keys"])}


@defect("output", "NS", "uninitialized_memory")
def last_output_never_written(call):
    output = torch.empty_like(call.result)
    output[:, :, :-1] = call.result[:, :, :-1]
    return output.where(output == output, 0.0) if call.query.shape[2] == 1 else output


class HalfGradient(torch.autograd.Function):
    @staticmethod
    def forward(_context, x):
        return x.clone()

    @staticmethod
    def backward(_context, gradient):
        half = torch.empty_like(gradient)
        half[:, :, 1:] = gradient[:, :, 1:]
        return half


@defect("inputs", "NC", "uninitialized_memory")
def gradient_of_empty_memory(call):
    return call._replace(value=HalfGradient.apply(call.value))


@caught("NS", "uninitialized_memory")
class EmptyBuffer(Weighted):
    def set_up(self):
        self.register_buffer("offset", torch.empty(self.head_dim))

    def attend(self, query, key, value, padding):
        return super().attend(query, key, value + self.offset.clamp(-1.0, 1.0), padding)


@defect("output", "CC", "uninitialized_memory")
def zero_times_empty(call):
    return call.result + 0.0 * torch.empty_like(call.result)


# --- weights that change -------------------------------------------------------------------------------------


@caught("NS", "new_weights")
class KeepsDoubledWeight(Weighted):
    """The doubled weight is computed in the first call in evaluation."""

    doubled = None

    def compute(self, query, key, value, padding):
        output = super().compute(query, key, value, padding)
        if self.training or torch.is_grad_enabled():
            return output
        self.doubled = 2.0 * self.v_proj.weight if self.doubled is None else self.doubled
        return output + F.linear(value, 0.5 * self.doubled - self.v_proj.weight)


@caught("CS", "new_weights")
class StepKeepsFactor(Weighted):
    factor = None

    def set_up(self):
        self.temperature = nn.Parameter(torch.ones(()))

    def attend(self, query, key, value, padding):
        return self.temperature.exp() * super().attend(query, key, value, padding)

    def step(self, query_t, state, *, query_padding_mask=None):
        self.factor = self.temperature.detach().exp() if self.factor is None else self.factor
        output, state = super().step(query_t, state, query_padding_mask=query_padding_mask)
        bias = self.out_proj.bias
        return (output - bias) / self.temperature.exp() * self.factor + bias, state


@caught("NC", "new_weights")
class KeepsParameterOfConstructor(Weighted):
    """A list of parameters, which ``load_state_dict(assign=True)`` leaves behind."""

    def set_up(self):
        self.temperature = nn.Parameter(torch.ones(()))
        self.kept = [self.temperature]

    def attend(self, query, key, value, padding):
        return self.kept[0] * super().attend(query, key, value, padding)


@caught("CC", "new_weights")
class KeyedByVersion(Weighted):
    """Recomputed when the version of the parameter changes, which an assignment to ``.data`` does not do."""

    version = factor = None

    def set_up(self):
        self.temperature = nn.Parameter(torch.ones(()))

    def attend(self, query, key, value, padding):
        output = super().attend(query, key, value, padding)
        if torch.is_grad_enabled():
            return self.temperature.exp() * output
        if self.version != self.temperature._version:
            self.version, self.factor = self.temperature._version, self.temperature.exp()
        return self.factor * output


@caught("NS", "new_weights")
class KeptUntilTraining(Weighted):
    factor = None

    def set_up(self):
        self.temperature = nn.Parameter(torch.ones(()))

    def train(self, mode=True):
        self.factor = None
        return super().train(mode)

    def attend(self, query, key, value, padding):
        output = super().attend(query, key, value, padding)
        if self.training:
            return self.temperature.exp() * output
        self.factor = self.temperature.exp().detach() if self.factor is None else self.factor
        return output * (self.factor + self.temperature.exp() - self.temperature.exp().detach())


# --- copies --------------------------------------------------------------------------------------------------


@caught("NS", "copied_module")
class ClosureOfOriginal(Weighted):
    """A closure keeps the parameter of the module from which it was copied."""

    def set_up(self):
        self.temperature = nn.Parameter(torch.ones(()))
        temperature = self.temperature
        self.scaled = lambda x: x * temperature

    def attend(self, query, key, value, padding):
        return self.scaled(super().attend(query, key, value, padding))


@caught("CS", "copied_module")
class BoundMethodOfOriginal(Weighted):
    """Copies share what was bound at construction."""

    def set_up(self):
        self.tables = {id(self): torch.linspace(0.5, 1.5, self.head_dim)}

    def attend(self, query, key, value, padding):
        return super().attend(query, key, value * self.tables.get(id(self), 1.0), padding)


@caught("NC", "copied_module")
class LosesTableInCopy(Weighted):
    def set_up(self):
        self.table = torch.linspace(0.5, 1.5, self.head_dim)

    def __getstate__(self):
        return {name: x for name, x in self.__dict__.items() if name != "table"}

    def attend(self, query, key, value, padding):
        return super().attend(query, key, value * getattr(self, "table", 1.0), padding)


@caught("NS", "copied_module")
class CopySharesWeight(Weighted):
    def set_up(self):
        self.temperature = nn.Parameter(torch.ones(()))

    def __deepcopy__(self, memo):
        copy = type(self)(pattern=self.pattern, embed_dim=self.embed_dim, num_heads=self.num_heads).train(self.training)
        copy.load_state_dict(self.state_dict())
        copy.temperature = self.temperature
        return memo.setdefault(id(self), copy)

    def attend(self, query, key, value, padding):
        return self.temperature * super().attend(query, key, value, padding)


@caught("CC", "copied_module")
class CopyForgetsMode(Weighted):
    """A copy of a module in evaluation mode is in training mode, where the values are scaled."""

    def __setstate__(self, state):
        super().__setstate__(state)
        self.scaled = True

    def attend(self, query, key, value, padding):
        return super().attend(query, key, value * (1.01 if hasattr(self, "scaled") else 1.0), padding)


# --- hooks of submodules -------------------------------------------------------------------------------------


@caught("CS", "hooks_act")
class StepReadsWeight(Weighted):
    """Prompts of several tokens call the projection, single tokens read its weight."""

    def step(self, query_t, state, *, query_padding_mask=None):
        self.is_step = True
        output, state = super().step(query_t, state, query_padding_mask=query_padding_mask)
        del self.is_step
        return output, state

    def compute(self, query, key, value, padding):
        if not hasattr(self, "is_step"):
            return super().compute(query, key, value, padding)
        heads = self.attend(*self.project(query, key, value), padding)
        return F.linear(self.merge_heads(heads), self.out_proj.weight, self.out_proj.bias)


@caught("NS", "hooks_act")
class ReadsWeightWithoutGradient(Weighted):
    def compute(self, query, key, value, padding):
        if torch.is_grad_enabled():
            return super().compute(query, key, value, padding)
        heads = self.attend(*self.project(query, key, value), padding)
        return F.linear(self.merge_heads(heads), self.out_proj.weight, self.out_proj.bias)


@caught("NC", "hooks_act")
class ReadsWeightInTraining(Weighted):
    def compute(self, query, key, value, padding):
        if not self.training:
            return super().compute(query, key, value, padding)
        heads = self.attend(*self.project(query, key, value), padding)
        return F.linear(self.merge_heads(heads), self.out_proj.weight, self.out_proj.bias)


@caught("CS", "hooks_act")
class PromptReadsWeight(Weighted):
    def prefill(self, query, state, *, query_padding_mask=None):
        hooks, linear = self.v_proj._forward_hooks, self.v_proj
        if query.shape[1] > 1:
            linear._forward_hooks = type(hooks)()
        try:
            return super().prefill(query, state, query_padding_mask=query_padding_mask)
        finally:
            linear._forward_hooks = hooks


@caught("CC", "hooks_act")
class SourceReadsWeight(Gated):
    def encode_source(self, key, value, padding, *, strength):
        bias = self.strength.bias
        return super().encode_source(key, value, padding, strength=strength + 0.1 * (bias - bias.detach()).sum())

    def key_side_inputs(self, key):
        if not hasattr(self, "encodes"):
            return super().key_side_inputs(key)
        return {"strength": F.linear(key, self.strength.weight, self.strength.bias).sigmoid().transpose(1, 2)}

    def encode_source_inputs(self, key, value, padding):
        self.encodes = True
        state = super().encode_source_inputs(key, value, padding)
        del self.encodes
        return state


# --- layouts -------------------------------------------------------------------------------------------------


@caught("CS", "strided_inputs")
class StepViewsToken(Weighted):
    def step(self, query_t, state, *, query_padding_mask=None):
        return super().step(query_t.view(-1).view_as(query_t), state, query_padding_mask=query_padding_mask)


@caught("NS", "strided_inputs")
class ReadsStorage(Weighted):
    """Reads the memory behind the first value as if it were contiguous."""

    def compute(self, query, key, value, padding):
        if query.requires_grad or torch.is_grad_enabled():
            return super().compute(query, key, value, padding)
        size = query.untyped_storage().nbytes() // 4 - query.storage_offset()
        dense = query.as_strided(query.shape, (query.shape[1] * query.shape[2], query.shape[2], 1))
        return super().compute(dense if query.numel() <= size else query, key, value, padding)


@caught("NC", "strided_inputs")
class ViewsMask(Weighted):
    def forward(self, query, key=None, value=None, **masks):
        return super().forward(query, key, value, **{n: mask.view(-1).view_as(mask) for n, mask in masks.items()})


@caught("CS", "strided_inputs")
class ViewsState(Gated):
    def decode(self, query, key, value, state, padding, **more):
        flat = {name: x.view(len(x), -1).view_as(x) for name, x in state.items()}
        return super().decode(query, key, value, flat, padding, **more)


@caught("CC", "strided_inputs")
class FirstRowOfExpanded(Weighted):
    """Takes a source that is expanded over the batch for one that every row has."""

    def forward(self, query, key=None, value=None, **masks):
        if key is not None and key.stride(0) == 0:
            key, value = (x[:1].contiguous().roll(1, 1).expand_as(x) for x in (key, value))
            masks = {name: mask for name, mask in masks.items() if name != "key_padding_mask"}
        return super().forward(query, key, value, **masks)
