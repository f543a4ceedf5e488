"""Record golden files: what public code computes with the parameters of one of our attentions, in float64.

Run by hand: ``python -m tools.golden SOURCE FOLDER [NAME ...]``. SOURCE is another module of this folder, FOLDER
contains the public code that its docstring names, and each NAME chooses a function ``make_NAME`` or ``start_NAME``
(default: all). A function copies the parameters of our module into the public module, under the names that the public
code has for them; inputs, parameters, outputs and the gradients of the inputs are stored.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import logging
import math
import sys
from collections.abc import Callable, Iterable, Iterator
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
        width: int = 16,
        heads: int = 2,
        /,
        *,
        layer: tuple[int, int] | None = None,
        perturbation: float = 0.5,
        **options: Any,
    ) -> None:
        self.about = about_of(attention, pattern, width, heads, layer, options)
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

    def save(
        self,
        case: str,
        source: str,
        public: Callable[..., Any],
        *lengths: int,
        batch: int = 2,
        faint: int | None = 3,
        tolerance: float = 1e-9,
        reason: str = "",
        rows: tuple[int | None, int | None] = (None, None),
        noise: dict[str, Tensor] | None = None,
        gradients: bool = True,
    ) -> None:
        """Store what ``public(*inputs)`` returns, and print how far our module is from it.

        Args:
            case: name in the file of the attention.
            source: repository, commit and class of the public code.
            public: the public computation, [B, N, D] to [B, N, D], or to a tuple that begins with it.
            lengths: of one input (self patterns) or two.
            batch: number of rows.
            faint: a token that is 1e-3 times as large, which shows small constants.
            tolerance: largest difference relative to the largest number.
            reason: why a tolerance above 1e-9 is needed, or what was replaced in the public code.
            rows: first and last row that are compared.
            noise: random numbers of the attention, by name, given instead of drawn.
            gradients: whether the gradients of the inputs are compared.
        """
        inputs = self.inputs(*lengths, batch=batch, faint=faint)
        output = public(*inputs)
        kept = (output[0] if isinstance(output, tuple) else output)[:, slice(*rows)]
        arrays = {"output": kept}
        if gradients:
            found = torch.autograd.grad((kept * direction(kept)).sum(), inputs)
            arrays |= {f"grad.{i}": x for i, x in enumerate(found)}
        arrays |= {f"state.{name}": x for name, x in self.ours.state_dict().items()}
        arrays |= {f"input.{i}": x for i, x in enumerate(inputs)}
        arrays |= {f"noise.{name}": x for name, x in (noise or {}).items()}
        about = {"source": source, "tolerance": tolerance, "reason": reason, "rows": rows}
        write(case, arrays, self.about | about)

    def inputs(self, *lengths: int, batch: int = 2, faint: int | None = 3) -> list[Tensor]:
        """Draw inputs [batch, length, D], as :meth:`save` does."""
        torch.manual_seed(21)
        drawn = [torch.randn(batch, length, self.about["embed_dim"]) for length in lengths]
        if faint is not None:
            drawn[0][:, faint] *= 1e-3
        return [x.double().requires_grad_() for x in drawn]

    def copy(self, public: Any, names: str) -> Recorder:
        """Copy parameters, or weights and biases of modules: ``q_proj weight.mT=key one+other=both``, ours=theirs.

        A bias that only one of two modules has must be 0.
        """
        for ours, theirs in pairs(names):
            mine, other = [find(self.ours, name) for name in ours.split("+")], find(public, theirs)
            if isinstance(other, Tensor):
                put(other, *mine)
            else:
                copy_linear(other, *mine)
        return self

    def heads(self, x: Tensor, source: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Project to queries, keys and values [B, H, N, E]."""
        ours, source = self.ours, x if source is None else source
        q, k, v = ours.q_proj(x), ours.k_proj(source), ours.v_proj(source)
        return ours.split_heads(q), ours.split_heads(k), ours.split_heads(v)

    def around(self, core: Callable[..., Tensor], *, tokens_first: bool = False) -> Callable[..., Tensor]:
        """Return ``core(q, k, v)`` on heads [B, H, N, E], or [B, N, H, E], between our linear maps."""

        def run(*inputs: Tensor) -> Tensor:
            heads = self.heads(*inputs)
            output = core(*(x.transpose(1, 2) for x in heads)).transpose(1, 2) if tokens_first else core(*heads)
            return self.ours.out_proj(self.ours.merge_heads(output))

        return run

    def save_core(
        self,
        case: str,
        source: str,
        core: Callable[..., Tensor],
        *lengths: int,
        tokens_first: bool = False,
        reason: str = "projections are torch's",
        **options: Any,
    ) -> None:
        """Store ``core`` between our linear maps, as in :meth:`around`."""
        self.save(case, source, self.around(core, tokens_first=tokens_first), *lengths, reason=reason, **options)

    def without_biases(self, *names: str) -> Recorder:
        """Set biases to zero that the public code does not have (all of them without names)."""
        with torch.no_grad():
            for name, parameter in self.ours.named_parameters():
                if name.endswith("bias") and (not names or name.removesuffix(".bias") in names):
                    parameter.zero_()
        return self

    def identity(self, name: str = "out_proj") -> Recorder:
        """Make a linear map the identity, for public code that ends before it."""
        linear = self.ours.get_submodule(name)
        put(linear.weight, torch.eye(len(linear.weight)))
        if linear.bias is not None:
            put(linear.bias, torch.zeros_like(linear.bias))
        return self


@contextlib.contextmanager
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


def main() -> None:
    """Call the functions ``patch`` and then ``make_*`` and ``start_*`` of the module, or those that are named.

    The folder is put on the path of imports. Functions ``start_*`` run in float32.
    """
    source, folder, *names = sys.argv[1:]
    sys.path.insert(0, folder)
    functions = vars(importlib.import_module(f"tools.golden.{source}"))
    with in_double():
        functions.get("patch", lambda: None)()
    for name, make in list(functions.items()):
        kind, _, what = name.partition("_")
        if kind in ("make", "start") and (not names or what in names):
            with in_double() if kind == "make" else contextlib.nullcontext():
                make()


def checkout(repository: str) -> Path:
    """Return the checkout of OWNER/NAME, which is OWNER+NAME in the folder of public code."""
    return Path(sys.argv[2]) / repository.replace("/", "+")


def load(path: Path, changes: dict[str, str] | None = None, **present: Any) -> Any:
    """Import one file of a checkout that is not part of an installed package.

    Args:
        path: the file.
        changes: text to replace in the file, each of which must occur: constants that differ, or what needs a GPU.
        present: modules by name, as far as the file imports what is not installed.
    """
    module = ModuleType(f"public_{path.stem}")
    module.__file__ = str(path)
    sys.modules |= {name.replace("__", "."): value for name, value in present.items()}
    sys.modules[module.__name__] = module
    exec(compile(changed(path, changes), str(path), "exec"), module.__dict__)
    return module


def changed(path: Path, changes: dict[str, str] | None) -> str:
    text = path.read_text()
    for old, new in (changes or {}).items():
        assert old in text, f"{path} does not contain '{old}'"
        text = text.replace(old, new)
    return text


def part(
    path: Path, start: str, stop: str | None, changes: dict[str, str] | None = None, /, **names: Any
) -> dict[str, Any]:
    """Run a part of a file, of which the rest needs what is not installed, with changes as in :func:`load`."""
    text = changed(path, changes)
    text = text[text.index(start) :]
    if stop is not None:
        text = text[: text.index(stop, len(start))]
    module = {"torch": torch, "nn": nn, "F": F, "math": math, "np": np, **names}
    exec(compile(text, str(path), "exec"), module)
    return module


def put(parameter: Tensor, *values: Tensor) -> None:
    """Copy values, one after another, into a parameter of the public code, in its shape."""
    with torch.no_grad():
        parameter.copy_((torch.cat(values) if len(values) > 1 else values[0]).reshape(parameter.shape))


def copy_linear(theirs: nn.Module, *ours: nn.Module) -> None:
    put(theirs.weight, *(x.weight for x in ours))
    biases = [torch.zeros(len(x.weight)) if x.bias is None else x.bias for x in ours]
    if theirs.bias is not None:
        put(theirs.bias, *biases)
    else:
        assert not any(bias.any() for bias in biases)


def pairs(names: str) -> list[tuple[str, str]]:
    """Return the names of ours and theirs in ``name name=other``."""
    return [(ours, theirs or ours) for ours, _, theirs in (name.partition("=") for name in names.split())]


def find(module: Any, name: str) -> Any:
    """Return a part of a module by its dotted name."""
    return functools.reduce(getattr, name.split("."), module)


def projected(public: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``public(x, source, source)`` as a function of x, which is its own source, or of both."""
    return lambda x, source=None: public(x, *(x if source is None else source,) * 2)


def drawn(modules: list[Any], names: str) -> dict[str, list[Tensor]]:
    """Return parameters of public modules under our names, ``ours=theirs``."""
    return {ours: [find(module, theirs) for module in modules] for ours, theirs in pairs(names)}


def seeded(draw: Callable[[], Any]) -> list[Any]:
    """Return modules drawn with the seeds that our own are drawn with."""
    modules = []
    for seed in range(32):
        torch.manual_seed(seed)
        modules.append(draw())
    return modules


def save_start(
    case: str,
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
    about = about_of(attention, pattern, width, heads, layer, options) | {"source": source}
    levels = torch.tensor(QUANTILES, dtype=torch.float64)
    arrays = {
        f"start.{name}": torch.cat([x.detach().flatten() for x in draws]).double().quantile(levels)
        for name, draws in statistics.items()
    }
    write(case, arrays, about)


def about_of(
    attention: str, pattern: str, width: int, heads: int, layer: tuple[int, int] | None, options: dict[str, Any]
) -> dict[str, Any]:
    sizes = {"embed_dim": width, "num_heads": heads, "layer": layer}
    return {"attention": attention, "pattern": pattern, **sizes, "options": options}


def write(case: str, arrays: dict[str, Tensor], about: dict[str, Any]) -> None:
    path = FOLDER / f"{about['attention']}.npz"
    stored = {name: narrow(x.detach().numpy()) for name, x in arrays.items()} | {"about": np.array(json.dumps(about))}
    stored = {f"{case}/{name}": stored[name] for name in sorted(stored)}
    if path.exists():
        with np.load(path) as file:
            stored = {name: file[name] for name in file.files if not name.startswith(f"{case}/")} | stored
    np.savez_compressed(path, **dict(sorted(stored.items())))
    golden, before = Golden.read(path, case), torch.get_default_dtype()
    size = sum(x.nbytes for x in golden.arrays.values())
    assert size <= MAX_BYTES, f"{case} has {size} bytes"
    torch.set_default_dtype(FLOAT32)  # as in the test
    found = golden.distances() if "output" in golden.arrays else golden.start_distances()
    torch.set_default_dtype(before)
    differences = {name: f"{x:.1e}" for name, x in found.items()}
    logging.getLogger(__name__).warning("%s: %d bytes, differences %s", case, size, differences)


def narrow(array: np.ndarray) -> np.ndarray:
    """In float32 if nothing is lost."""
    if array.dtype == np.float64 and (array.astype(np.float32) == array).all():
        return array.astype(np.float32)
    return array
