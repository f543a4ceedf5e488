"""Golden vectors for ports: every stage of an attention in float64, and the first stage of a port that differs.

A port computes from ``inputs/...`` and ``weights/...`` what it can of the other vectors, under the same names. Their
order is that of the computation, so the first one that differs names the fault.
"""

from __future__ import annotations

import inspect
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cab.attention import Attention
from cab.convolution import ShortConvolution
from cab.errors import UserError
from cab.files.disk import replacing
from cab.patterns import Pattern
from cab.verification.entries import chunked, initial_state, pack, random_direction, read_chunks
from cab.verification.inputs import Inputs, Module, leaves_of, padding_masks
from cab.verification.suite import subject_of

SIZES = {"B": 2, "N": 11, "M": 7, "D": 30, "H": 5, "E": 6}
"""Batch, targets, keys of a cross pattern, width, heads and width of a head; no two are equal."""

STAGES = ("query_side_inputs", "key_side_inputs", "project", "prepared", "terms", "update", "finish", "attend")
"""Methods of an attention, if it has them, whose results are stages, in addition to the calls of its submodules."""

TOLERANCE = 1e-9
"""Largest error of a number, relative to one plus its size."""

LEGEND = (
    "Names are CASE/STAGE in the order of the computation. Cases: whole (all tokens in one call), chunks and steps "
    "(decoding, from the state before the first token), padded_right, padded_left, packed (the real tokens of "
    "padded_right), gradient (of the sum of output times of_output). A layout names dimensions: B batch, N targets, "
    " M keys, D width, H heads, E = D / H; numbers are other sizes. D holds the heads one after another: "
    "feature h E + e is feature e of head h. Masks are true at padding. Arrays are in row-major order."
)


@dataclass
class Log:
    """The vectors of a module by name, and one line for each."""

    module: Module
    vectors: dict[str, Tensor] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, name: str, value: Any, meaning: str) -> None:
        """Add every tensor in ``value``; of a name that occurs again, the count is added."""
        for path, x in _tensors(value):
            count = sum(key.partition("#")[0] == name + path for key in self.vectors)
            key = f"{name}{path}{f'#{count + 1}' if count else ''}"
            self.vectors[key] = x.detach().clone().contiguous()
            self.rows.append({"name": key, "shape": [*x.shape], "layout": layout(x), "meaning": meaning})

    def stages(self, run: Callable[[], Any], case: str) -> Any:
        """Add the result of each submodule and each method of :data:`STAGES` that ``run`` calls, and return its own."""
        methods = [name for name in STAGES if hasattr(self.module, name)]
        for name in methods:
            setattr(self.module, name, self._recorded(f"{case}/{name}", getattr(self.module, name)))
        hooks = [
            submodule.register_forward_hook(
                lambda part, _, output, name=name: self.add(f"{case}/{name}", output, _formula(part))
            )
            for name, submodule in self.module.named_modules()
            if not [*submodule.children()]
        ]
        try:
            return run()
        finally:
            for name in methods:
                delattr(self.module, name)
            for hook in hooks:
                hook.remove()

    def _recorded(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            result = method(*arguments, **options)
            self.add(name, result, _first_line(method))
            return result

        return call


def layout(x: Tensor) -> str:
    """Return the names of the dimensions of ``x``: ``B H N E``; sizes without a name are numbers."""
    names = {size: name for name, size in SIZES.items()}
    return " ".join(names.get(size, str(size)) for size in x.shape)


def _formula(module: nn.Module) -> str:
    return "x weight^T + bias" if isinstance(module, nn.Linear) else _first_line(type(module))


def _first_line(documented: object) -> str:
    return (inspect.getdoc(documented) or "").partition("\n")[0]


def _tensors(value: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors in nested results, with the path of each; triples are query, key and value."""
    if isinstance(value, Tensor):
        yield path, value
    elif hasattr(value, "_asdict"):
        yield from _tensors(value._asdict(), path)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _tensors(item, f"{path}.{name}")
    elif isinstance(value, Sequence) and not isinstance(value, str):
        names = ("query", "key", "value") if len(value) == 3 else range(len(value))
        for index, item in zip(names, value, strict=True):
            yield from _tensors(item, f"{path}.{index}")


def definitions(module: Module) -> dict[str, str]:
    """Return the source of the reference form and of the stages, and of all functions and constants that they name."""
    found: dict[str, str] = {}
    pending = [(name, getattr(module, name, None)) for name in ("reference", "write", *STAGES) if name != "attend"]
    while pending:
        name, value = pending.pop(0)
        function = inspect.unwrap(getattr(value, "__func__", value)) if callable(value) else value
        if name in found or getattr(function, "__module__", None) == Attention.__module__:
            continue
        if inspect.isfunction(function) and not function.__module__.startswith("torch"):
            found[name] = inspect.getsource(function)
            used = names_in(function.__code__)
            pending += [(word, getattr(module, word, function.__globals__.get(word))) for word in used]
        elif isinstance(value, bool | int | float | str):
            found[name] = repr(value)
    return found


def names_in(code: CodeType) -> Iterator[str]:
    """Yield the names of attributes and globals that code uses, and those of the functions that it defines."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_in(constant)


def weight_meanings(module: nn.Module) -> dict[str, str]:
    """Return the meaning of the layout of each weight: which dimension is multiplied by what."""
    meanings = {}
    for path, part in module.named_modules():
        for name, _ in [*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)]:
            if isinstance(part, nn.Linear):
                text = "[outputs, inputs] of y = x weight^T + bias" if name == "weight" else "[outputs]"
            elif isinstance(part, ShortConvolution):
                text = "[tap, head, 1, feature], the oldest token first" if name == "weight" else "[head, 1, feature]"
            else:
                text = f"`{name}` of {type(part).__name__}"
            meanings[f"{path}.{name}".lstrip(".")] = text
    return meanings


def golden_vectors(
    attention: str | type[nn.Module], pattern: Pattern, options: Mapping[str, Any]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the vectors of an attention by name, and their manifest.

    Raises:
        UserError: the attention does not support the pattern or an option.
    """
    subject = subject_of(attention, pattern, options=options)
    module = subject.build(embed_dim=SIZES["D"], num_heads=SIZES["H"]).double()
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    lengths = (SIZES["N"], SIZES["M"], SIZES["M"]) if pattern.is_cross else (SIZES["N"],)
    inputs = Inputs(*(normal(SIZES["B"], length, SIZES["D"]) for length in lengths))
    log, meanings = Log(module), weight_meanings(module)
    with torch.no_grad():
        for parameter in module.parameters():  # no weight is zero or one
            parameter.add_(0.2 * normal(*parameter.shape))
        for name, x in inputs.tensors().items():
            log.add(f"inputs/{name}", x, "")
        for name, x in module.state_dict().items():
            log.add(f"weights/{name}", x, meanings.get(name, ""))
        log.add("whole/output", log.stages(lambda: inputs.run(module), "whole"), "the outputs")
        sizes = {"chunks": chunked(SIZES["N"]), "steps": [1] * SIZES["N"]} if subject.decodes else {}
        for case, parts in {**({"whole": [SIZES["N"]]} if sizes else {}), **sizes}.items():
            start = initial_state(module, inputs)
            state = _first_line(module.init_decode_state)
            if case != "whole":
                log.add(f"{case}/state_after_first", read_chunks(module, inputs, parts[:1], start)[1], state)
            output, after = read_chunks(module, inputs, parts, start)
            if case != "whole":
                log.add(f"{case}/output", output, f"outputs of reading {', '.join(map(str, parts))} tokens")
            log.add(f"{case}/state", after, state)
        for case in ("right", "left"):
            masks = {"query_padding": padding_masks(case, inputs.query)}
            masks |= {"key_padding": padding_masks(case, inputs.key)} if inputs.key is not None else {}
            padded = Inputs(**inputs.tensors(), **masks)
            log.add(f"padded_{case}", masks, "true at padding")
            log.add(f"padded_{case}/output", padded.run(module), "zero at padded targets")
            if case == "right":
                log.add("packed/output", pack(padded, module)[padded.real], "outputs of the real tokens, row by row")
    leaves = leaves_of(module, inputs.requiring_grad())
    output = Inputs(**{name: leaves[name] for name in inputs.tensors()}).run(module)
    direction = random_direction(output)
    log.add("gradient/of_output", direction, "direction in which the outputs are differentiated")
    gradients = torch.autograd.grad(output, [*leaves.values()], direction, allow_unused=True)
    for name, gradient in zip(leaves, gradients, strict=True):
        if gradient is not None:
            log.add(f"gradient/{name}", gradient, "")
    manifest = {
        "format": 1,
        "attention": subject.name,
        "pattern": str(pattern),
        "options": dict(options),
        "equations": inspect.getdoc(type(module)),
        "definitions": definitions(module),
        "legend": LEGEND,
        "sizes": SIZES,
        "tolerance": TOLERANCE,
        "torch": torch.__version__,
        "vectors": log.rows,
    }
    return log.vectors, manifest


def write_vectors(path: Path, vectors: Mapping[str, Tensor], manifest: Mapping[str, Any]) -> None:
    """Write ``path``.safetensors and the manifest ``path``.json."""
    data = safetensors().save({name: x.numpy() for name, x in vectors.items()})
    for suffix, content in ((".safetensors", data), (".json", json.dumps(manifest, indent=1).encode())):
        with replacing(path.with_suffix(suffix)) as temporary:
            temporary.write_bytes(content)


@dataclass(frozen=True)
class Comparison:
    """One vector of a port: its error, and what is wrong with it (empty: nothing)."""

    name: str
    meaning: str
    error: float
    fault: str


def compare(manifest: Path, port: Path) -> list[Comparison]:
    """Return the comparisons of all vectors that a port has computed, in the order of the computation.

    Raises:
        UserError: a file is missing or damaged, or the port has no vector of the manifest, or an unknown one.
    """
    listed = json.loads(manifest.read_text(encoding="utf-8"))
    expected, found = (_load(path) for path in (manifest.with_suffix(".safetensors"), port))
    rows = {row["name"]: row for row in listed["vectors"]}
    if unknown := sorted(found.keys() - rows.keys()):
        raise UserError(f"{port}: {manifest} has no vector '{unknown[0]}'")
    computed = [row for name, row in rows.items() if name in found and not name.startswith(("inputs/", "weights/"))]
    if not computed:
        raise UserError(f"{port}: no vector of {manifest} that a port computes, such as whole/output")
    comparisons = []
    for row in computed:
        x, y = found[row["name"]], expected[row["name"]]
        if x.shape != y.shape:
            comparisons.append(Comparison(row["name"], row["meaning"], np.inf, f"shape {x.shape}, not {y.shape}"))
            continue
        error = _error(x, y)
        fault = "" if error <= listed["tolerance"] else f"error {error:.2g}{_transposition(x, y, listed['tolerance'])}"
        comparisons.append(Comparison(row["name"], row["meaning"], error, fault))
    return comparisons


def _error(x: np.ndarray, y: np.ndarray) -> float:
    """Return the largest error relative to one plus the expected size; infinite for NaN."""
    error = np.abs(x.astype(float) - y.astype(float)) / (1.0 + np.abs(y.astype(float)))
    return float(np.nan_to_num(error, nan=np.inf).max(initial=0.0))


def _transposition(x: np.ndarray, y: np.ndarray, tolerance: float) -> str:
    """Return which order of the dimensions would agree, if there is one."""
    orders = [order for order in itertools.permutations(range(x.ndim)) if x.transpose(order).shape == y.shape]
    agreeing = [order for order in orders if _error(x.transpose(order), y) <= tolerance]
    return f"; equal if its dimensions are reordered as {agreeing[0]}" if agreeing else ""


def _load(path: Path) -> dict[str, np.ndarray]:
    try:
        return safetensors().load_file(path)
    except Exception as error:
        raise UserError(f"cannot read the vectors {path}: {error}") from error


def safetensors() -> Any:
    """Return the module that reads and writes numpy arrays; UserError with the extra that has it."""
    try:
        import safetensors.numpy
    except ImportError as error:
        raise UserError("golden vectors require an extra: `pip install 'cab-benchmark[testing]'`") from error
    return safetensors.numpy
