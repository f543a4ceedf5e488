"""Record golden files: what public code computes with the parameters of one of our attentions, in float64.

Each ``make_*.py`` of this folder is run by hand as ``python -m tools.golden.make_NAME CHECKOUT`` and imports
public code from that checkout (or from installed packages). It copies the parameters of our module into the public
module, under the names that the public code has for them, and stores inputs, parameters, outputs and the gradients of
the inputs.
"""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cab import Attention, LayerPosition, build_attention
from tests.helpers.golden_numbers import FOLDER, QUANTILES, Golden, direction

MAX_BYTES = 50_000
FLOAT32 = torch.float32
"""The type itself, where :func:`in_double` gives its name to another."""


class Recorder:
    """Our module with generic parameters, and the file in which the public numbers for it are stored.

    Args:
        attention: registered name.
        pattern: NS, CS, NC or CC.
        width: embedding width D.
        heads: number of heads.
        layer: (index, number of layers) for attentions that depend on it.
        perturbation: relative standard deviation of the noise added to the initial parameters.
        options: keyword arguments of the attention.
    """

    def __init__(
        self,
        attention: str,
        pattern: str,
        width: int,
        heads: int,
        /,
        *,
        layer: tuple[int, int] | None = None,
        perturbation: float = 0.5,
        **options: Any,
    ) -> None:
        self.about: dict[str, Any] = {
            "attention": attention,
            "pattern": pattern,
            "embed_dim": width,
            "num_heads": heads,
            "layer": layer,
            "options": options,
        }
        torch.manual_seed(20)
        depth = {"layer_position": LayerPosition(*layer)} if layer else {}
        self.ours: Attention = build_attention(
            attention, pattern=pattern, embed_dim=width, num_heads=heads, **depth, **options
        ).eval()
        with torch.no_grad():
            for parameter in self.ours.parameters():
                size = parameter.square().mean().sqrt().item() or 0.3
                parameter.add_(perturbation * size * torch.randn_like(parameter))
        self.ours.double()

    def inputs(self, *lengths: int, batch: int = 2, faint: int | None = 3) -> list[Tensor]:
        """Draw inputs [batch, length, D]; token ``faint`` is 1e-3 times as large, which shows small constants."""
        torch.manual_seed(21)
        drawn = [torch.randn(batch, length, self.about["embed_dim"]) for length in lengths]
        if faint is not None:
            drawn[0][:, faint] *= 1e-3
        return [x.double().requires_grad_() for x in drawn]

    def save(
        self,
        file: str,
        source: str,
        public: Callable[..., Tensor],
        inputs: list[Tensor],
        *,
        tolerance: float = 1e-9,
        reason: str = "",
        rows: tuple[int | None, int | None] = (None, None),
        noise: dict[str, Tensor] | None = None,
        mask: Tensor | None = None,
        gradients: bool = True,
    ) -> None:
        """Store what ``public(*inputs)`` returns, and print how far our module is from it.

        Args:
            file: name of the file, without the suffix.
            source: repository, commit and class of the public code.
            public: the public computation, [B, N, D] to [B, N, D].
            inputs: one input (self patterns) or two.
            tolerance: largest difference relative to the largest number.
            reason: why a tolerance above 1e-9 is needed, or what was replaced in the public code.
            rows: first and last row that are compared.
            noise: random numbers of the attention, by name, given instead of drawn.
            mask: key padding mask.
            gradients: whether the gradients of the inputs are compared.
        """
        output = public(*inputs)
        kept = output[:, slice(*rows)]
        real = ~mask[:, slice(*rows)].unsqueeze(-1) if mask is not None else torch.ones_like(kept, dtype=torch.bool)
        about = self.about | {
            "source": source,
            "tolerance": tolerance,
            "reason": reason,
            "rows": rows,
        }
        arrays = {"output": kept}
        if gradients:
            total = (kept * direction(kept) * real).sum()
            arrays |= {f"grad.{i}": x for i, x in enumerate(torch.autograd.grad(total, inputs))}
        arrays |= {f"state.{name}": x for name, x in self.ours.state_dict().items()}
        arrays |= {f"input.{i}": x for i, x in enumerate(inputs)}
        arrays |= {f"noise.{name}": x for name, x in (noise or {}).items()}
        if mask is not None:
            arrays["mask"] = mask
        write(FOLDER / f"{file}.npz", arrays, about)

    def linears(self, **public: nn.Module) -> None:
        """Copy weights and biases of our linear maps, by name, into public ones; a bias on one side alone must be 0."""
        for name, module in public.items():
            copy_linear(self.ours.get_submodule(name), module)

    def without_biases(self, *names: str) -> None:
        """Set biases to zero that the public code does not have (all of them without names)."""
        with torch.no_grad():
            for name, parameter in self.ours.named_parameters():
                if name.endswith("bias") and (not names or name.removesuffix(".bias") in names):
                    parameter.zero_()

    def identity(self, name: str = "out_proj") -> None:
        """Make a linear map the identity, for public code that ends before it."""
        linear = self.ours.get_submodule(name)
        with torch.no_grad():
            linear.weight.copy_(torch.eye(len(linear.weight)))
            if linear.bias is not None:
                linear.bias.zero_()


@contextmanager
def in_double() -> Iterator[None]:
    """Let public code that converts to float32 compute in float64, and create new tensors in float64."""
    wide = dict.fromkeys(("float", "float32"), torch.float64)
    wide |= dict.fromkeys(("cfloat", "complex64"), torch.complex128)
    before, to_float = {name: getattr(torch, name) for name in wide}, torch.Tensor.float
    try:
        for name, dtype in wide.items():
            setattr(torch, name, dtype)
        torch.Tensor.float = torch.Tensor.double  # type: ignore[method-assign,assignment]
        torch.set_default_dtype(torch.float64)
        yield
    finally:
        for name, dtype in before.items():
            setattr(torch, name, dtype)
        torch.Tensor.float = to_float  # type: ignore[method-assign]
        torch.set_default_dtype(FLOAT32)


def record_all(recorder: dict[str, Any]) -> None:
    """Call each function ``make_*`` of a module's globals, with the folder that the command line names, if it does."""
    with in_double():
        for name, make in list(recorder.items()):
            if name.startswith("make_"):
                make(*map(Path, sys.argv[1:]))


def load(path: Path, changes: dict[str, str] | None = None, **present: Any) -> Any:
    """Import one file of a checkout that is not part of an installed package.

    Args:
        path: the file.
        changes: text to replace in the file, each of which must occur: constants that differ, or what needs a GPU.
        present: modules by name, as far as the file imports what is not installed.
    """
    source = path.read_text()
    for old, new in (changes or {}).items():
        assert old in source, f"{path} does not contain '{old}'"
        source = source.replace(old, new)
    module = ModuleType(f"public_{path.stem}")
    module.__file__ = str(path)
    sys.modules |= {name.replace("__", "."): value for name, value in present.items()}
    sys.modules[module.__name__] = module
    exec(compile(source, str(path), "exec"), module.__dict__)
    return module


def part(path: Path, start: str, stop: str | None, **names: Any) -> dict[str, Any]:
    """Run a part of a file, of which the rest needs what is not installed."""
    text = path.read_text()
    text = text[text.index(start) :]
    if stop is not None:
        text = text[: text.index(stop, len(start))]
    module = {"torch": torch, "nn": nn, "F": F, "math": math, "np": np, **names}
    exec(compile(text, str(path), "exec"), module)
    return module


def put(parameter: Tensor, values: Tensor) -> None:
    """Copy values into a parameter of the public code, in its shape."""
    with torch.no_grad():
        parameter.copy_(values.reshape(parameter.shape))


def copy_linear(ours: nn.Module, theirs: nn.Module) -> None:
    with torch.no_grad():
        theirs.weight.copy_(ours.weight.view_as(theirs.weight))
        if theirs.bias is not None:
            theirs.bias.copy_(torch.zeros_like(theirs.bias) if ours.bias is None else ours.bias)
        else:
            assert ours.bias is None or not ours.bias.any()


def save_start(
    file: str,
    source: str,
    attention: str,
    pattern: str,
    width: int,
    heads: int,
    statistics: dict[str, Iterable[Tensor]],
    /,
    *,
    layer: tuple[int, int] | None = None,
    **options: Any,
) -> None:
    """Store quantiles of the public code's initial parameters, under our names, pooled over several draws."""
    about = {
        "attention": attention,
        "pattern": pattern,
        "embed_dim": width,
        "num_heads": heads,
        "layer": layer,
        "options": options,
        "source": source,
    }
    levels = torch.tensor(QUANTILES, dtype=torch.float64)
    arrays = {
        f"start.{name}": torch.cat([x.detach().flatten() for x in draws]).double().quantile(levels)
        for name, draws in statistics.items()
    }
    write(FOLDER / f"{file}.npz", arrays, about)


def write(path: Path, arrays: dict[str, Tensor], about: dict[str, Any]) -> None:
    stored = {name: narrow(x.detach().numpy()) for name, x in arrays.items()}
    np.savez_compressed(path, about=np.array(json.dumps(about)), **stored)
    assert path.stat().st_size <= MAX_BYTES, f"{path.name} has {path.stat().st_size} bytes"
    golden, before = Golden.read(path), torch.get_default_dtype()
    torch.set_default_dtype(FLOAT32)  # as in the test
    found = golden.distances() if "output" in golden.arrays else golden.start_distances()
    torch.set_default_dtype(before)
    differences = {name: f"{x:.1e}" for name, x in found.items()}
    logging.getLogger(__name__).warning("%s: %d bytes, differences %s", path.name, path.stat().st_size, differences)


def narrow(array: np.ndarray) -> np.ndarray:
    """In float32 if nothing is lost."""
    if array.dtype == np.float64 and (array.astype(np.float32) == array).all():
        return array.astype(np.float32)
    return array
