"""Mutations: sound attentions, a method of which is replaced by a defect, and the checks that must fail."""

import functools
import inspect
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cab import Attention, Pattern
from cab.verification import run_checks, select_checks
from cab.verification.subject import LONG, Subject

MEDIUM = 1700  # long for a check, at a sixth of the work of the usual length

NEVER = float("-inf")


def future(n: int) -> Tensor:
    return torch.ones(n, n, dtype=torch.bool).triu(1)


def hide(logits: Tensor, hidden: Tensor) -> Tensor:
    return logits.masked_fill(hidden, torch.finfo(logits.dtype).min)


def hide_padding(logits: Tensor, padding: Tensor | None) -> Tensor:
    return logits if padding is None else hide(logits, padding[:, None, None])


class Method(Attention):
    """An attention whose further parameters and buffers are made by ``set_up``."""

    memory = None

    def __init__(self, *, pattern, embed_dim, num_heads, dropout=0.0):
        super().__init__(pattern=pattern, embed_dim=embed_dim, num_heads=num_heads, dropout=dropout)
        self.set_up()

    def set_up(self):
        pass


class Weighted(Method):
    """Sound softmax attention, causal in CS, whose weights are there to work with: what most defects start from."""

    def weights(self, query, key, padding):
        logits = hide_padding(query @ key.mT * self.scale, padding.key)
        return logits.softmax(-1) if self.forgets(query) else self.softmax(logits)

    def softmax(self, logits):
        if self.pattern is Pattern.CS:
            logits = logits.masked_fill(future(logits.shape[-1]), NEVER)
        return logits.softmax(-1)

    def forgets(self, query):  # noqa: ARG002
        """Whether the causal mask is left out."""
        return False

    def attend(self, query, key, value, padding):
        return self.weights(query, key, padding) @ value

    def reference(self, query, key, value):
        logits = query @ key.mT * self.scale
        if self.pattern is Pattern.CS:  # written out, since the fast form calls ``softmax``
            logits = logits.masked_fill(future(query.shape[1]), NEVER)
        return logits.softmax(-1) @ value


SHORT = {
    "q": lambda c: c.query,
    "k": lambda c: c.key,
    "v": lambda c: c.value,
    "n": lambda c: c.query.shape[-2],
    "m": lambda c: c.key.shape[-2],
    "mask": lambda c: c.padding.key,
    "logits": lambda c: c.query @ c.key.mT * c.scale,
    "padded_logits": lambda c: hide_padding(c.logits, c.mask),
    "output": lambda c: c.y[0],  # of decoding, which gives two results
    "new": lambda c: c.y[1],  # the state after decoding
}


class Call:
    """A call of a method: its arguments, attributes of its module, :data:`SHORT`, and ``y``, what the method gives."""

    def __init__(self, method, module, arguments):
        self.method, self.module, self.arguments = method, module, arguments

    def __getattr__(self, name):
        if name in SHORT:
            return SHORT[name](self)
        arguments = self.__dict__["arguments"]
        return arguments[name] if name in arguments else getattr(self.module, name)

    def but(self, **changed):
        """Return what the method gives for other arguments; ``mask`` is that of the keys in ``padding``."""
        if "mask" in changed:
            changed["padding"] = self.padding._replace(key=changed.pop("mask"))
        return self.method(self.module, **self.arguments | changed)

    def set(self, **attributes):
        for name, x in attributes.items():
            setattr(self.module, name, x)
        return self

    @functools.cached_property
    def y(self):
        return self.but()

    def kept(self, name, compute=None):
        """Return what ``compute`` or the method gave when the module was last called with the same ``name``."""
        if self.module.memory is None or self.module.memory[0] != name:
            self.set(memory=(name, compute() if compute else self.y))
        return self.module.memory[1]

    def during(self, flag):
        """Return the result of a call during which an attribute of the module is True."""
        result = self.set(**{flag: True}).y
        self.set(**{flag: False})
        return result

    def with_mask(self, wrong):
        """Return the result, or what is ``wrong`` of the mask where there is one."""
        return self.y if self.mask is None else wrong(self.mask)

    def with_state(self, change):
        """Return the result for a state of changed tensors."""
        return self.but(state=each(self.state, change))

    def unless_grad(self, wrong):
        """Return the result, or what is ``wrong`` where no gradient is computed."""
        return self.y if torch.is_grad_enabled() else wrong()


def replaced(method, change):
    """Return a method that gives what ``change`` makes of a call of ``method``; in decoding, an output or a state."""
    signature = inspect.signature(method)
    named = [x.name for x in signature.parameters.values() if x.kind is x.VAR_KEYWORD]

    @functools.wraps(method)
    def changed(module, *positional, **keywords):
        bound = signature.bind(module, *positional, **keywords)
        bound.apply_defaults()
        arguments = {name: x for name, x in bound.arguments.items() if name not in ("self", *named)}
        call = Call(method, module, arguments | (bound.arguments[named[0]] if named else {}))
        result = change(call)
        if method.__name__ in ("step", "prefill", "decode", "prefill_packed") and not isinstance(result, tuple):
            return (call.output, result) if isinstance(result, dict) else (result, call.new)
        return result

    return changed


def variant(base: type, **members: Any) -> type:
    """Return ``base`` with other members.

    Args:
        members: attributes, ``made``, a function from the module to attributes of its own, ``query``, ``key``,
            ``value`` or ``mask`` of ``attend``, or methods; inputs and methods are functions of a :class:`Call`.
    """
    made = members.pop("made", None)
    if made is not None:
        members["set_up"] = lambda call: nothing(call.y, call.set(**made(call.module) or {}))
    inputs = {name: members.pop(name) for name in ("query", "key", "value", "mask") if name in members}
    if inputs:
        members["attend"] = lambda call: call.but(**{name: change(call) for name, change in inputs.items()})
    members = {name: replaced(getattr(base, name), x) if inspect.isfunction(x) else x for name, x in members.items()}
    return type(base.__name__, (base,), members)


def on(caught: str, base: type = Weighted, *, long: int = 0, **members: Any) -> tuple[str, type, int]:
    """Return a variant of ``base`` for :func:`planted`.

    Args:
        caught: patterns and, after a colon, checks: in each of the patterns, all of them fail, which name the defect.
        long: length that shows the defect, if the quick suite does not.
    """
    return caught, variant(base, **members), long


medium = functools.partial(on, long=MEDIUM)  # a defect beyond the lengths of the quick suite


def planted(**defects: tuple[str, type, int]) -> list[Any]:
    """Return cases of a test: class, pattern, failing checks, and the length for the defect or 0 in the quick suite."""
    cases = []
    for name, (caught, cls, long) in defects.items():
        cls.__name__ = name
        patterns, checks = caught.split(":")
        marks = pytest.mark.slow if long else ()
        cases += [pytest.param(cls, p, checks.split(), long, id=f"{name}-{p}", marks=marks) for p in patterns.split()]
    return cases


# --- parts of defects ------------------------------------------------------------------------------------------------


def nothing(*_done):
    pass


def each(tensors, change):
    return {name: change(x) for name, x in tensors.items()}


def hooked(x, hook):
    if x.requires_grad:
        x.register_hook(hook)
    return x


def by_hand(forward, backward):
    """Return a function of tensors whose ``backward`` gets the gradient and those tensors."""

    class ByHand(torch.autograd.Function):
        @staticmethod
        def forward(context, *x):
            context.save_for_backward(*x)
            return forward(*x)

        @staticmethod
        def backward(context, gradient):
            return backward(gradient, *context.saved_tensors)

    return ByHand.apply


def parameter(*size):
    return nn.Parameter(torch.ones(size))


def failures(cls, pattern, checks=None, *, quick=True, complexity="n^2", long=LONG):
    """Return the details of the checks that failed, without any measurement of time."""
    pattern = Pattern.parse(pattern)
    subject = Subject(cls.__name__, cls, pattern, complexity=complexity, long=(long,))
    results = list(run_checks(subject, [check for check in select_checks(checks, quick=quick) if not check.is_timed]))
    assert results
    return {result.check: result.detail for result in results if not result.passed}
