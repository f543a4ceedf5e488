"""The subject of a check: one attention in one pattern, its construction and its inputs."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from cab.attention import SINGLE_LAYER, Attention
from cab.claims import Claims
from cab.errors import UserError
from cab.patterns import Pattern
from cab.training import TrainableModule, auxiliary_loss
from cab.verification.compare import ROUNDING, coarsest
from cab.verification.inputs import LAYOUTS, Inputs, Module, seed_torch, takes_masks, with_padding

WIDTH, HEADS = 32, 4
"""Size of most modules under verification."""

WHOLE = 64
"""Number of tokens in the first call: whole blocks of most methods."""

LONG, LONG_WIDTH, LONG_HEADS = 4133, 16, 2
"""A length that exceeds the blocks and caches of real methods, and the module size at such lengths."""


PLAIN = Claims(max_self_contribution=0.9999)
"""Claims of a module without its own: residual connections and MLPs leave most of an output to its own token."""


def fact(measure: Callable[[Subject], Any]) -> Any:
    """Return a property that is measured once for all checks of a subject."""

    def get(subject: Subject) -> Any:
        if measure not in subject.shared:
            subject.shared[measure] = measure(subject)
        return subject.shared[measure]

    return property(get, doc=measure.__doc__)


@dataclass(eq=False)
class Subject:
    """An attention class in one pattern, with constructor options.

    Subclasses of :class:`cab.Attention` have to satisfy the whole contract. A plain module has to implement
    ``forward``; its decoding is verified if it has ``init_state`` and ``step``.
    """

    name: str
    cls: type[nn.Module]
    pattern: Pattern
    options: Mapping[str, Any] = field(default_factory=dict)
    complexity: str | None = None
    device: str = "cpu"
    long: tuple[int, ...] = (LONG,)
    """Lengths for the long part of a check; empty in the quick suite."""
    drawn: list[int] = field(default_factory=list)
    """Lengths of all inputs drawn so far."""
    skipped: list[str] = field(default_factory=list)
    """What the module refuses, such as a size."""
    seed: int = 0
    """Number of the sample of weights and inputs."""
    shared: dict[Any, Any] = field(default_factory=dict)
    """Facts, and values of plain calls, which all checks share."""

    def for_check(self, *, long: bool) -> Subject:
        """Return a copy that has drawn nothing, with the facts found so far, for a check with or without long parts."""
        subject = copy.copy(self)
        subject.drawn, subject.skipped, subject.long = [], [], self.long if long else ()
        return subject

    def declared(self, name: str, default: Any = False) -> Any:
        """Return what the class declares in its attribute ``name``."""
        return getattr(self.cls, name, default)

    # --- what is expected ---

    @property
    def keeps_whole_contract(self) -> bool:
        """Whether the class is an attention of this project; a module of another package does not follow all rules."""
        return issubclass(self.cls, Attention)

    @property
    def clears_padding(self) -> bool:
        """Whether the class inherits all methods that set padded inputs to zero."""
        methods = ("forward", "prefill", "step")
        return self.keeps_whole_contract and all(getattr(self.cls, x) is getattr(Attention, x) for x in methods)

    @property
    def padding_layouts(self) -> tuple[str, ...]:
        """Declared padding layouts, or all if ``forward`` accepts masks; the whole contract includes all of them."""
        if self.keeps_whole_contract:
            return LAYOUTS
        return self.declared("padding_layouts", LAYOUTS if takes_masks(self.cls.forward) else ())

    @property
    def prompt_padding_layouts(self) -> tuple[str, ...] | None:
        """Layouts that a class supports in a prompt if it supports no padding in single steps; otherwise None."""
        return None if self.keeps_whole_contract else self.declared("prompt_padding_layouts", None)

    @property
    def decode_tolerance(self) -> float:
        """Largest relative error of decoding, which a class with an approximate state declares."""
        return self.rounded(self.declared("decode_tolerance", ROUNDING))

    def rounded(self, limit: float = ROUNDING) -> float:
        """Return a limit for float32, or 4 epsilon if that is more and the class declares a coarser dtype."""
        return max(limit, 4.0 * self.epsilon) if self.epsilon > 1e-6 else limit

    @property
    def autocast_dtypes(self) -> tuple[torch.dtype, ...]:
        """The low-precision dtypes that the class supports (default: bfloat16 and float16)."""
        return self.declared("autocast_dtypes", Attention.autocast_dtypes)

    @property
    def reads_others(self) -> bool:
        """Whether the method reads other tokens; one of constant complexity does not."""
        return self.complexity != "1"

    @property
    def reads_source(self) -> bool:
        return self.pattern.is_cross and self.reads_others

    @property
    def decodes(self) -> bool:
        has_decoding = self.keeps_whole_contract or (hasattr(self.cls, "init_state") and hasattr(self.cls, "step"))
        return self.pattern.is_causal and has_decoding

    @property
    def prefills(self) -> bool:
        return self.decodes and (self.keeps_whole_contract or hasattr(self.cls, "prefill"))

    @property
    def stores_prefix(self) -> bool:
        """Whether the state is the prefix, as in a class that does not define decoding in this pattern."""
        method = "encode_source" if self.pattern.is_cross else "init_decode_state"
        return self.keeps_whole_contract and self.declared(method, None) is None

    @property
    def has_constant_size_state(self) -> bool:
        """Whether the class declares a decoding state of constant size in this pattern."""
        return self.declared("has_constant_size_state") and not self.stores_prefix

    def decodes_padding(self, layout: str, *, in_prompts: bool = False) -> bool:
        """Return whether decoding supports a layout in any call, or only in prompts, which a class may declare."""
        prompts = self.prompt_padding_layouts
        if not self.decodes or layout not in self.padding_layouts:
            return False
        return prompts is not None and layout in prompts if in_prompts else prompts is None

    # --- what a module shows ---

    @property
    def epsilon(self) -> float:
        """Machine epsilon of the coarsest dtype in which the class declares to compute if its inputs are float32."""
        return torch.finfo(self.declared("internal_dtype", torch.float32)).eps

    @fact
    def decoding_epsilon(self) -> float:
        """Machine epsilon of the coarsest dtype in which decoding computes or stores its state."""
        module = self.build()
        inputs = self.draw(module, 3)
        source = {name: x for name, x in inputs.tensors().items() if name != "query"}

        def decode() -> None:
            state = module.init_state(len(inputs.query), **source)
            for token in inputs.query.unbind(1):
                _, state = module.step(token, state)

        return coarsest(decode)

    @fact
    def claims(self) -> Claims:
        """Return what the class claims about its method in this pattern."""
        return getattr(self.build(), "claims", PLAIN)

    @fact
    def max_token_distance(self) -> int | None:
        """Largest distance between an output and a token that it depends on; None if the module declares none."""
        distance = getattr(self.build(), "max_token_distance", None)
        return None if distance is None else int(distance)

    @fact
    def selects_tokens(self) -> bool:
        """Whether the module declares that outputs do not depend on all tokens."""
        return bool(getattr(self.build(), "selects_tokens", False))

    @fact
    def opens_gates(self) -> bool:
        """Whether the module has gates that can be opened."""
        return open_gates(self.build())

    @fact
    def dropout(self) -> float:
        """0.3, or 0 if the class rejects dropout in training on this device, such as flash attention on a CPU."""
        module = self.build(dropout=0.3).train()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about missing kernels; the class raises its own error
            try:
                self.draw(module, 2).run(module)
            except UserError:
                return 0.0
        return 0.3

    @fact
    def has_reference(self) -> bool:
        """Whether the class has a reference implementation, even one that raises."""
        if not issubclass(self.cls, Attention):
            return False
        module = self.build()
        module.use_reference = True
        with contextlib.suppress(Exception):
            try:
                self.draw(module, 2).run(module)
            except NotImplementedError:
                return False
        return True

    @fact
    def is_random_in_training(self) -> bool:
        """Whether training mode is random without dropout."""
        module = self.build().train()
        inputs = self.draw(module, 33)
        with torch.no_grad():
            return not torch.equal(inputs.run(module, seed=1), inputs.run(module, seed=2))

    @fact
    def learns(self) -> bool:
        """Whether the module has a part with its own training behavior."""
        return any(isinstance(module, TrainableModule) for module in self.build().modules())

    @fact
    def adds_loss(self) -> bool:
        return any(auxiliary_loss(module) is not None for module in self._after_a_call())

    @fact
    def accumulates_statistics(self) -> bool:
        learners = (m for module in self._after_a_call() for m in module.modules() if isinstance(m, TrainableModule))
        return any(learner.pop_statistics() for learner in learners)

    def _after_a_call(self) -> Iterator[Module]:
        """Yield modules after a call in training and in evaluation; failing calls are left to other checks."""
        for training in (True, False):
            module = self.build().train(training)
            with contextlib.suppress(Exception):
                self.draw(module, 5).run(module)
                yield module

    # --- construction ---

    def build(
        self,
        *,
        embed_dim: int = WIDTH,
        num_heads: int = HEADS,
        dropout: float = 0.0,
        seed: int = 0,
        keeps_zeros: bool = False,
        opens_gates: bool = False,
        **options: Any,
    ) -> Module:
        """Build a module in evaluation mode.

        Parameters initialized to zero, such as biases, are randomized unless ``keeps_zeros``: zeros can hide defects.
        With ``opens_gates``, the module forgets as little as it can; see :func:`open_gates`.
        """
        if self.refuses(embed_dim, num_heads):
            embed_dim, num_heads = WIDTH, HEADS
        sizes = {"embed_dim": embed_dim, "num_heads": num_heads, "dropout": dropout}
        arguments = {"pattern": self.pattern, **sizes, "layer_position": SINGLE_LAYER}
        accepted = {name: value for name, value in arguments.items() if takes(self.cls, name)}
        seed_torch(seed + 10_007 * self.seed, self.device)
        given = {**accepted, **self.options, **options}
        module: Module = self.cls(**given).eval()
        module = module if self.device == "cpu" else module.to(self.device)
        if not isinstance(getattr(module, "embed_dim", None), int):  # a plain module may lack this attribute
            if "embed_dim" not in given:
                raise UserError(f"the width of {self.name} is unknown: set its attribute embed_dim")
            module.embed_dim = given["embed_dim"]
        with torch.no_grad():
            for parameter in () if keeps_zeros else module.parameters():
                if parameter.requires_grad and parameter.is_floating_point() and not parameter.any():
                    parameter.normal_(std=0.3)
        if opens_gates:
            open_gates(module)
        return module

    def refuses(self, embed_dim: int, num_heads: int) -> bool:
        """Return whether a module of another package refuses a size when it is built or called, and report that."""
        if self.keeps_whole_contract or (embed_dim, num_heads) == (WIDTH, HEADS):
            return False
        key, size = ("refuses", embed_dim, num_heads), f"width {embed_dim}, heads {num_heads}"
        if key not in self.shared:
            self.shared[key] = False
            try:
                with torch.no_grad():
                    module = self.build(embed_dim=embed_dim, num_heads=num_heads)
                    self.draw(module, WHOLE).run(module)
            except Exception:
                self.shared[key] = True
        if self.shared[key] and size not in self.skipped:
            self.skipped.append(size)
        return bool(self.shared[key])

    def is_long(self, length: int) -> bool:
        return length >= min(self.long, default=LONG)

    def draw(
        self,
        module: Module,
        length: int,
        source_length: int | None = None,
        *,
        batch: int | None = None,
        scale: float = 1.0,
        seed: int = 1,
        padding: str = "",
    ) -> Inputs:
        """Draw normal inputs of standard deviation ``scale``, by default two rows, or one of a long sequence.

        The default source length is shorter than the target length except for the shortest targets, so that a factor of
        the longer length is one of the targets. Without support for the layout ``padding``, another supported layout is
        used, or none.
        """
        batch = batch or (1 if self.is_long(length) else 2)
        generator = torch.Generator().manual_seed(seed + 10_007 * self.seed)
        source_length = length // 2 + 3 if source_length is None else source_length
        lengths = (length, source_length, source_length) if self.pattern.is_cross else (length,)
        self.drawn += reversed(lengths)
        tensors = [torch.randn(batch, n, module.embed_dim, generator=generator) * scale for n in lengths]
        inputs = Inputs(*(x.to(self.device) for x in tensors))
        if padding not in ("", "single_token", *self.padding_layouts):
            padding = next(iter(self.padding_layouts), "")
        return with_padding(inputs, padding) if padding else inputs


GATES = {
    r"A_log$|(^|[._])decay$|recurrent_(param|gate_bias)$": -9.0,
    r"dt_bias$|(dt|step)_proj\.bias$": -6.0,
    r"(^|\.)(f_proj|fgate\w*|forget\w*|decay\w*)(\.\d+)?\.bias$": 9.0,
}
"""Values at which a parameter with such a name lets a recurrence forget little: logarithms of a rate of decay, steps
before a softplus, and forget gates before a sigmoid."""


@torch.no_grad()
def open_gates(module: nn.Module) -> bool:
    """Make a module forget as little as it can: by its method ``open_gates``, or by the names of its parameters."""
    methods: list[Any] = [m.open_gates for m in module.modules() if callable(getattr(m, "open_gates", None))]
    for method in methods:
        method()
    is_open = bool(methods)
    for name, parameter in () if methods else module.named_parameters():
        for value in (value for pattern, value in GATES.items() if re.search(pattern, name)):
            parameter.fill_(value)
            is_open = True
    return is_open


_signature = functools.cache(inspect.signature)


def takes(cls: Any, name: str) -> bool:
    """Return whether the constructor of ``cls`` accepts ``name``; ``**kwargs`` accept all but ``layer_position``."""
    if cls.__init__ is nn.Module.__init__:
        return False
    parameters = _signature(cls).parameters
    accepts_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return name in parameters or (accepts_any and name != "layer_position")
