"""Attentions with one real defect each in what few calls meet: settings, modes of copies, masks, roles of tensors."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from tests.helpers.verification.mutations import MEDIUM, Method, Weighted, caught, defect
from tests.helpers.verification.sound_learning import Gated

# --- settings of the process ---------------------------------------------------------------------------------


@defect("output", "NS", "settings_untouched")
def flushes_denormal_numbers_in_backward(call):
    if call.result.requires_grad:
        call.result.register_hook(lambda _: torch.set_flush_denormal(True) and None)
    return call.result


@defect("output", "NC", "settings_untouched")
def leaves_autocast_without_cache(call):
    torch.set_autocast_cache_enabled(False)
    return call.result


@caught("CS", "settings_untouched")
class StepOnOneThread(Weighted):
    def step(self, query_t, state, *, query_padding_mask=None):
        torch.set_num_threads(1)
        return super().step(query_t, state, query_padding_mask=query_padding_mask)


# --- weights, copies and hooks -------------------------------------------------------------------------------


class Scaled(Method):
    """Softmax attention with a learned factor, which a subclass keeps while ``key`` stays the same."""

    kept = (None, None)

    def set_up(self):
        self.temperature = nn.Parameter(torch.ones(()))

    def attend(self, query, key, value, padding):
        hidden = None if padding.key is None else ~padding.key[:, None, None]
        return self.factor() * F.scaled_dot_product_attention(query, key, value, hidden)

    def factor(self):
        if self.training or torch.is_grad_enabled():
            return self.temperature.exp()
        if self.kept[0] != self.name_of(self.temperature):
            self.kept = self.name_of(self.temperature), self.temperature.exp()
        return self.kept[1]


@caught("NS", "new_weights")
class KeyedByAddress(Scaled):
    """A copy into ``.data`` changes neither address nor version."""

    def name_of(self, x):
        return x.data_ptr(), x._version


@caught("NC", "new_weights")
class KeyedByVersionAlone(Scaled):
    """The weights of ``functional_call`` may have the version of the others."""

    def name_of(self, x):
        return x._version


@caught("CC", "new_weights")
class KeepsMapOfOneSource(Weighted):
    """Keys and values of one tensor come from a joint map, which is kept in evaluation."""

    joint = None

    def train(self, mode=True):
        self.joint = None
        return super().train(mode)

    def project(self, query, key, value):
        if key is not value or torch.is_grad_enabled():
            return super().project(query, key, value)
        if self.joint is None:
            self.joint = torch.cat([self.k_proj.weight, self.v_proj.weight])
        k, v = F.linear(key, self.joint).chunk(2, dim=-1)
        return tuple(map(self.split_heads, (self.q_proj(query), k + self.k_proj.bias, v + self.v_proj.bias)))

    def compute(self, query, key, value, padding):
        return self.out_proj(self.merge_heads(self.attend(*self.project(query, key, value), padding)))


@caught("CS", "new_weights")
class KeepsPrompt(Gated):
    """The result of a prompt is kept for the same prompt."""

    last = (None, None)

    def decode_inputs(self, tokens, mask, state):
        if torch.is_grad_enabled() or tokens.shape[1] == 1 or any(x.any() for x in state.values()):
            return super().decode_inputs(tokens, mask, state)
        name = tokens.shape, float(tokens.double().sum())
        if self.last[0] != name:
            self.last = name, super().decode_inputs(tokens, mask, state)
        return self.last[1]


@caught("NS", "copied_module")
class CopyWithoutDropout(Weighted):
    def __deepcopy__(self, memo):
        copy = type(self)(pattern=self.pattern, embed_dim=self.embed_dim, num_heads=self.num_heads).train(self.training)
        copy.load_state_dict(self.state_dict())
        return memo.setdefault(id(self), copy)

    def attend(self, query, key, value, padding):
        return F.dropout(self.weights(query, key, padding), self.weight_dropout) @ value


@caught("NC", "copied_module")
class LoadedInEvaluationMode(CopyWithoutDropout):
    __deepcopy__ = None

    def __setstate__(self, state):
        super().__setstate__(state)
        self.training = False


@caught("CS", "hooks_act")
class StepCallsPartsOfContainer(Gated):
    """The hooks of the container itself do not act."""

    def set_up(self):
        super().set_up()
        self.strength = nn.Sequential(self.strength, nn.Identity())

    def key_side_inputs(self, key):
        if key.shape[1] > 1:
            return super().key_side_inputs(key)
        return {"strength": self.strength[0](key).sigmoid().transpose(1, 2)}


# --- rows, masks and head widths -----------------------------------------------------------------------------


@defect("output", "NS", "many_rows", long=MEDIUM)
def mask_of_first_rows(call):
    """Rows beyond 512 are computed in a second chunk, with the mask of the first."""
    if call.padding.key is None or len(call.query) <= 512:
        return call.result
    rest = call.query[512:], call.key[512:], call.value[512:]
    wrong = F.scaled_dot_product_attention(*rest, ~call.padding.key[: len(rest[0]), None, None])
    return torch.cat([call.result[:512], wrong])


@defect("output", "NS", "fast_is_reference")
def scaled_by_padded_width(call):
    """Wide heads are padded to a multiple of eight, whose root is the scale."""
    width = call.query.shape[3]
    if width < 32 or width % 8 == 0:
        return call.result
    parts = (F.pad(x, (0, -width % 8)) for x in (call.query, call.key, call.value))
    hidden = None if call.padding.key is None else ~call.padding.key[:, None, None]
    return F.scaled_dot_product_attention(*parts, hidden)[..., :width]


@defect("output", "NS", "module_in_bfloat16")
def positions_counted_in_bfloat16(call):
    """Beyond 256 the positions of a window are rounded, where a mask is given."""
    if call.padding.key is None:
        return call.result
    real = ~call.padding.key
    error = real.to(call.query.dtype).cumsum(1).float() - real.cumsum(1)
    return call.result + error[:, None, :, None].to(call.result.dtype)


@caught("NS", "contents_in_turn", long=MEDIUM)
class MaskByCount(Weighted):
    """In evaluation a mask is kept by its shape and number of padded tokens."""

    last = (None, None)

    def attend(self, query, key, value, padding):
        if padding.key is None or torch.is_grad_enabled():
            return super().attend(query, key, value, padding)
        name = padding.key.shape, int(padding.key.sum())
        if self.last[0] != name:
            self.last = name, padding.key.clone()
        return super().attend(query, key, value, padding._replace(key=self.last[1]))


@caught("NC", "contents_in_turn")
class SourceByVersion(Weighted):
    """The source is kept by identity and version of its tensor; a freed tensor's identity returns."""

    last = (None, None)

    def forward(self, query, key=None, value=None, **masks):
        if torch.is_grad_enabled() or masks:
            return super().forward(query, key, value, **masks)
        name = id(key), key._version, key.shape
        if self.last[0] != name:
            self.last = name, key.clone()
        return super().forward(query, self.last[1], value)


# --- gradients and initialization ----------------------------------------------------------------------------


@defect("output", "CC", "gradient_of_residual")
def flushes_tiny_gradients(call):
    if call.result.requires_grad:
        call.result.register_hook(lambda g: torch.where(g.abs() < 1e-10, 0.0, g))
    return call.result


@caught("CS", "decode_in_training")
class StepsWithoutHistory(Gated):
    """A step in training mode returns a detached state."""

    def decode(self, query, key, value, state, padding, **more):
        output, new = super().decode(query, key, value, state, padding, **more)
        detaches = self.training and query.shape[2] == 1
        return output, {name: x.detach() if detaches else x for name, x in new.items()}


@caught("NS", "graph_leaves")
class LeafInLoss(Weighted):
    def set_up(self):
        self.log_weights = [torch.zeros((), requires_grad=True)]

    def attend(self, query, key, value, padding):
        self.add_loss(query.square().mean((1, 3)) * self.log_weights[0].exp(), padding)
        return super().attend(query, key, value, padding)


@caught("NS", "parameters_learn")
class TwoZeroMaps(Weighted):
    """Both maps of a low-rank addition start at zero, so neither ever gets a gradient."""

    def set_up(self):
        self.down, self.up = (nn.Linear(*sizes, bias=False) for sizes in ((self.embed_dim, 4), (4, self.embed_dim)))
        for linear in (self.down, self.up):
            nn.init.zeros_(linear.weight)

    def compute(self, query, key, value, padding):
        return super().compute(query, key, value + self.up(self.down(value)), padding)
