"""What is verified: one attention in one pattern, how it is built, and the inputs it is given."""

from __future__ import annotations

import contextlib
import functools
import inspect
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cab.attention import SINGLE_LAYER, Attention
from cab.errors import UserError
from cab.patterns import Pattern
from cab.training import TrainableModule, auxiliary_loss
from cab.verification.inputs import Inputs, Module

WIDTH, HEADS = 32, 4
"""Size of most modules under verification; some checks add others."""

LONG, LONG_WIDTH, LONG_HEADS = 4133, 8, 1
"""A length beyond the blocks, caches and switches of real methods, and the size of modules at such lengths."""


@dataclass(frozen=True)
class Subject:
    """An attention class in one pattern, with the options it is built with.

    Registered classes and subclasses of :class:`cab.Attention` promise the whole contract. A plain module
    promises ``forward``; its decoding is verified when it has ``init_state`` and ``step``.
    """

    name: str
    cls: type[nn.Module]
    pattern: Pattern
    options: Mapping[str, Any] = field(default_factory=dict)
    complexity: str | None = None
    is_registered: bool = False
    device: str = "cpu"
    long: tuple[int, ...] = (LONG,)
    """Lengths of the long form of a check; none in the quick suite."""
    drawn: set[int] = field(default_factory=set, compare=False)
    """Lengths of the inputs drawn so far."""

    @property
    def keeps_whole_contract(self) -> bool:
        return self.is_registered or issubclass(self.cls, Attention)

    @functools.cached_property
    def dropout(self) -> float:
        """0.3, or 0 for a class that refuses dropout in training here, as flash attention does on a CPU."""
        module = self.build(dropout=0.3).train()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch explains why it has no kernel; the class says so itself
            try:
                self.draw(module, 2).run(module)
            except UserError:
                return 0.0
        return 0.3

    @functools.cached_property
    def has_reference(self) -> bool:
        """Whether the readable form is there beside the fast one."""
        if not issubclass(self.cls, Attention):
            return False
        module = self.build()
        module.use_reference = True
        try:
            self.draw(module, 2).run(module)
        except NotImplementedError:
            return False
        except Exception:  # it is there, and the check will say what is wrong with it
            return True
        return True

    @functools.cached_property
    def is_random_in_training(self) -> bool:
        """Whether training mode draws random numbers, without dropout."""
        module = self.build().train()
        inputs = self.draw(module, 33)
        with torch.no_grad():
            return not torch.equal(inputs.run(module, seed=1), inputs.run(module, seed=2))

    @functools.cached_property
    def adds_loss(self) -> bool:
        """Whether a call gives the training loop a loss of its own."""
        return any(auxiliary_loss(module) is not None for module in self._after_a_call())

    @functools.cached_property
    def gathers(self) -> bool:
        """Whether a call in training mode gathers statistics from which buffers learn."""
        learners = (m for module in self._after_a_call() for m in module.modules() if isinstance(m, TrainableModule))
        return any(learner.pop_statistics() for learner in learners)

    def _after_a_call(self) -> Iterator[Module]:
        """Modules that were called in training and in evaluation; none where a call fails, as other checks will say."""
        for training in (True, False):
            module = self.build().train(training)
            with contextlib.suppress(Exception):
                self.draw(module, 5).run(module)
                yield module

    @property
    def decodes(self) -> bool:
        """Whether decoding is to be verified."""
        has_methods = hasattr(self.cls, "init_state") and hasattr(self.cls, "step")
        return self.pattern.is_causal and (self.keeps_whole_contract or has_methods)

    def build(
        self, *, embed_dim: int = WIDTH, num_heads: int = HEADS, dropout: float = 0.0, seed: int = 0, **options: Any
    ) -> Module:
        """A module in evaluation mode.

        Parameters that start as zeros (biases) are drawn at random: a defect can hide behind a zero.
        """
        harness: dict[str, Any] = {
            "pattern": self.pattern,
            "embed_dim": embed_dim,
            "num_heads": num_heads,
            "dropout": dropout,
        }
        if names_argument(self.cls, "layer_position"):
            harness["layer_position"] = SINGLE_LAYER
        accepted = {name: value for name, value in harness.items() if takes(self.cls, name)}
        torch.manual_seed(seed)
        module: Module = self.cls(**{**accepted, **self.options, **options}).to(self.device).eval()
        if not isinstance(getattr(module, "embed_dim", None), int):  # a plain module need not keep its width
            if "embed_dim" not in accepted:
                raise UserError(f"cannot tell the width of {self.name}: give it an attribute embed_dim")
            module.embed_dim = embed_dim
        with torch.no_grad():
            for parameter in module.parameters():
                if parameter.is_floating_point() and not parameter.any():
                    parameter.normal_(std=0.3)
        return module

    def build_for(self, length: int, **options: Any) -> Module:
        """A module of the usual size, of a small one for long sequences."""
        small = {"embed_dim": LONG_WIDTH, "num_heads": LONG_HEADS} if length >= min(self.long, default=LONG) else {}
        return self.build(**small | options)

    def draw(
        self,
        module: Module,
        length: int,
        source_length: int | None = None,
        *,
        batch: int = 2,
        scale: float = 1.0,
        seed: int = 1,
    ) -> Inputs:
        """Normal inputs of standard deviation ``scale``; a source has its own length.

        When not given, it is shorter than the targets for all but the shortest: a factor that depends on the
        longer of the two lengths then depends on the targets'.
        """
        generator = torch.Generator().manual_seed(seed)
        self.drawn.add(length)

        def draw(length: int) -> Tensor:
            return (torch.randn(batch, length, module.embed_dim, generator=generator) * scale).to(self.device)

        if not self.pattern.is_cross:
            return Inputs(draw(length))
        source_length = length // 2 + 3 if source_length is None else source_length
        self.drawn.add(source_length)
        return Inputs(draw(length), draw(source_length), draw(source_length))


def takes(cls: type[nn.Module], name: str) -> bool:
    """Whether the constructor of ``cls`` accepts the keyword ``name``."""
    if cls.__init__ is nn.Module.__init__:
        return False
    parameters = inspect.signature(cls).parameters
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def names_argument(cls: type[nn.Module], name: str) -> bool:
    """Whether the constructor of ``cls`` names the argument, not only takes any."""
    return cls.__init__ is not nn.Module.__init__ and name in inspect.signature(cls).parameters


class _Precision(TorchDispatchMode):
    """Notes the coarsest floating-point type that any operation produces."""

    def __init__(self) -> None:
        super().__init__()
        self.epsilon = 0.0

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Kernels that are compiled (FlexAttention) run as they do without this mode."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        for x in tree_leaves(output):
            if isinstance(x, Tensor) and x.is_floating_point():
                self.epsilon = max(self.epsilon, torch.finfo(x.dtype).eps)
        return output


def rounding(module: Module, inputs: Inputs) -> float:
    """Relative spacing of the coarsest numbers that ``module`` computes with: float32 1.2e-7, bfloat16 7.8e-3."""
    with torch.no_grad(), _Precision() as precision:
        inputs.run(module)
    return max(precision.epsilon, torch.finfo(torch.float32).eps)
