"""Golden files: what public code computes with the parameters of one of our attentions, in float64.

A function of another module builds our attention (:class:`Recorder`) and the public module, copies the parameters
(:meth:`Recorder.copy`, :func:`put`) and saves inputs, parameters, outputs and gradients (:meth:`Recorder.save`), or
quantiles of initial parameters (:func:`save_start`).

Only the module for an installed package is kept. The cases of other packages and of repositories, each of which names
its source, were recorded by ``tools/golden`` of commit fdfecfe4, from checkouts that this project does not have.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from tests.helpers.golden_numbers import FOLDER, QUANTILES, Golden, direction

MAX_BYTES = 50_000
FLOAT32 = torch.float32
"""The type itself, where :func:`in_double` gives its name to another."""
OURS = "projections are torch's"
"""The reason of a case with a public core between our linear maps."""


class Recorder:
    """Our module with generic parameters, and the file in which the public numbers for it are stored.

    Args:
        attention: registered name.
        pattern: NS, CS, NC or CC.
        width: embedding width D.
        heads: number of heads.
        options: keyword arguments of the attention.
    """

    def __init__(
        self,
        attention: str,
        pattern: str,
        width: int = 16,
        heads: int = 2,
        /,
        **options: Any,
    ) -> None:
        sizes = {"embed_dim": width, "num_heads": heads, "layer": None}
        self.about = {"attention": attention, "pattern": pattern, **sizes, "options": options}
        torch.manual_seed(20)
        self.ours = Golden(self.about, {}).build().eval()
        with torch.no_grad():
            for parameter in self.ours.parameters():
                size = parameter.square().mean().sqrt().item() or 0.3
                parameter.add_(0.5 * size * torch.randn_like(parameter))
        self.ours.double()

    def save(
        self,
        source: str,
        public: Callable[..., Any],
        *lengths: int,
        case: str = "",
        batch: int = 2,
        reason: str = "",
    ) -> None:
        """Store what ``public(*inputs)`` returns.

        Args:
            source: repository, commit and class of the public code.
            public: the public computation, [B, N, D] to [B, N, D], or to a tuple that begins with it.
            lengths: of one input (self patterns) or two.
            case: name in the file of the attention (default: the attention).
            batch: number of rows.
            reason: what was replaced in the public code.
        """
        torch.manual_seed(21)
        drawn = [torch.randn(batch, length, self.about["embed_dim"]) for length in lengths]
        drawn[0][:, 3] *= 1e-3  # a faint token shows small constants
        inputs = [x.double().requires_grad_() for x in drawn]
        output = public(*inputs)
        output = output[0] if isinstance(output, tuple) else output
        arrays = {"output": output}
        found = torch.autograd.grad((output * direction(output)).sum(), inputs)
        arrays |= {f"grad.{i}": x for i, x in enumerate(found)}
        arrays |= {f"state.{name}": x for name, x in self.ours.state_dict().items()}
        arrays |= {f"input.{i}": x for i, x in enumerate(inputs)}
        about = {"source": source, "tolerance": 1e-9, "reason": reason, "rows": (None, None)}
        write(case or self.about["attention"], arrays, self.about | about)

    def copy(self, public: Any, names: str) -> Recorder:
        """Copy parameters, or weights and biases of modules: ``q_proj weight.mT=key one+other=both``, ours=theirs.

        A bias that only one of two modules has is set to 0.
        """
        for ours, theirs in pairs(names):
            mine, other = [attrgetter(name)(self.ours) for name in ours.split("+")], attrgetter(theirs)(public)
            if isinstance(other, Tensor):
                put(other, *mine)
                continue
            put(other.weight, *(x.weight for x in mine))
            biases = [torch.zeros(len(x.weight)) if x.bias is None else x.bias for x in mine]
            if other.bias is not None:
                put(other.bias, *biases)
            for bias in biases if other.bias is None else ():
                put(bias, torch.zeros_like(bias))
        return self

    def around(self, core: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Return ``core(q, k, v)`` on heads [B, H, N, E] between our linear maps."""
        ours = self.ours

        def run(x: Tensor) -> Tensor:
            heads = (ours.split_heads(y) for y in (ours.q_proj(x), ours.k_proj(x), ours.v_proj(x)))
            return ours.out_proj(ours.merge_heads(core(*heads)))

        return run

    def without_biases(self, *names: str) -> Recorder:
        """Set biases to zero that the public code does not have (all of them without names)."""
        with torch.no_grad():
            for name, parameter in self.ours.named_parameters():
                if name.endswith("bias") and (not names or name.removesuffix(".bias") in names):
                    parameter.zero_()
        return self

    def identity(self) -> Recorder:
        """Make the output map the identity, for public code that ends before it."""
        put(self.ours.out_proj.weight, torch.eye(len(self.ours.out_proj.weight)))
        return self.without_biases("out_proj")


@contextlib.contextmanager
def in_double() -> Iterator[None]:
    """Let public code that converts to float32 compute in float64, and create new tensors in float64."""
    wide = {"float": torch.float64, "float32": torch.float64, "cfloat": torch.complex128, "complex64": torch.complex128}
    with mock.patch.multiple(torch, **wide), mock.patch.object(torch.Tensor, "float", torch.Tensor.double):
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(FLOAT32)


def put(parameter: Tensor, *values: Tensor) -> None:
    """Copy values, one after another, into a parameter of the public code, in its shape."""
    with torch.no_grad():
        parameter.copy_((torch.cat(values) if len(values) > 1 else values[0]).reshape(parameter.shape))


def pairs(names: str) -> list[tuple[str, str]]:
    """Return the names of ours and theirs in ``name name=other``."""
    return [(ours, theirs or ours) for ours, _, theirs in (name.partition("=") for name in names.split())]


def sequence_first(public: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of [N, B, D], or a tuple that begins with it, as one of [B, N, D]."""

    def run(*inputs: Tensor) -> Tensor:
        output = public(*(x.transpose(0, 1) for x in inputs))
        return (output[0] if isinstance(output, tuple) else output).transpose(0, 1)

    return run


def save_start(
    source: str, attention: str, *sizes: Any, statistics: Mapping[str, Iterable[Tensor]], case: str = "", **options: Any
) -> None:
    """Store quantiles of the public code's initial parameters, under our names, pooled over several draws.

    Sizes and options are those of :class:`Recorder`.
    """
    about = Recorder(attention, *sizes, **options).about | {"source": source}
    levels = torch.tensor(QUANTILES, dtype=torch.float64)
    arrays = {
        f"start.{name}": torch.cat([x.detach().flatten() for x in drawn]).double().quantile(levels)
        for name, drawn in statistics.items()
    }
    write(case or f"{attention}_start", arrays, about)


def write(case: str, arrays: dict[str, Tensor], about: dict[str, Any]) -> None:
    """Replace a case in the file of its attention; tests/public_numbers shows how far our module is from it."""
    path = FOLDER / f"{about['attention']}.npz"
    stored = {name: narrow(x.detach().numpy()) for name, x in arrays.items()}
    size = sum(x.nbytes for x in stored.values())
    assert size <= MAX_BYTES, f"{case} has {size} bytes"
    stored = {f"{case}/{name}": x for name, x in (stored | {"about": np.array(json.dumps(about))}).items()}
    if path.exists():
        with np.load(path) as file:
            stored |= {name: file[name] for name in file.files if not name.startswith(f"{case}/")}
    np.savez_compressed(path, **dict(sorted(stored.items())))
    sys.stdout.write(f"{case}: {size} bytes\n")


def narrow(array: np.ndarray) -> np.ndarray:
    """Return the array in float32 if this loses no digit."""
    is_exact = array.dtype == np.float64 and (array.astype(np.float32) == array).all()
    return array.astype(np.float32) if is_exact else array


def main(functions: Mapping[str, Any]) -> None:
    """Call the functions ``make_NAME`` of a program, or those that its arguments name."""
    for name, make in list(functions.items()):
        kind, _, what = name.partition("_")
        if kind == "make" and (not sys.argv[1:] or what in sys.argv[1:]):
            with in_double():
                make()
