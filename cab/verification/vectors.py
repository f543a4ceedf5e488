"""Golden vectors for ports: every stage of an attention in float64, and a manifest that explains them."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn

from cab.attention import Attention
from cab.convolution import ShortConvolution
from cab.errors import UserError
from cab.files.disk import replacing
from cab.patterns import Pattern
from cab.registry.options import argument_texts
from cab.verification.entries import chunked, initial_state, pack, random_direction, read_chunks
from cab.verification.inputs import Inputs, Module, leaves_of, padding_masks
from cab.verification.suite import subject_of

SIZES = {"B": 2, "N": 23, "M": 7, "D": 30, "H": 5, "E": 6}
"""Batch, targets, keys of a cross pattern, width, heads and width of a head; no two are equal."""

SMALL = {
    **{"top_k": 4, "num_blocks": 4, "block_size": 2, "compress_size": 2, "compress_stride": 1, "chunk_size": 3},
    **{"window": 3, "window_size": 3, "pooled_window": 5, "segment": 3, "memory": 3, "compressed": 2, "group_size": 3},
    **{"stride": 3, "summary": 2, "radius": 3, "max_span": 5, "ramp": 2, "num_clusters": 3, "num_buckets": 4},
    **{"num_landmarks": 4, "index_heads": 2},
}
"""Largest defaults of options with these names: N tokens are more than a method chooses, and few index heads, whose
relu is often zero, tie scores."""

NO_PARTS: dict[str, str] = {}
STAGES = {
    **dict.fromkeys(("query_side_inputs", "key_side_inputs"), NO_PARTS),
    "project": {"query": "of the targets", "key": "of the source", "value": "of the source"},
    **dict.fromkeys(("prepared", "latent", "queries", "keys", "pooled", "assign", "select"), NO_PARTS),
    "compress": {"key": "of whole blocks", "value": "of whole blocks"},
    **dict.fromkeys(("compression_weights", "scores", "chosen", "selected", "terms"), NO_PARTS),
    "update": {"output": "o of all tokens, before `finish`", "memory": "S after the last token"},
    **dict.fromkeys(("finish", "attend"), NO_PARTS),
}
"""Methods of an attention and its parts whose results are stages, in addition to the calls of submodules.

The values are the parts of a tuple; by default, :data:`OUTPUTS`.
"""

OUTPUTS = {"output": "of all tokens", "state": "after the last token"}

TOLERANCE = {"float64": 1e-9, "float32": 1e-3}
"""Largest error of a number by the type of the port, relative to one plus its size."""

LEGEND = (
    "Names are CASE/STAGE in the order of the computation. Cases: whole (all tokens in one call), chunks and steps "
    "(decoding, from the state before the first token), padded_right, padded_left, packed (the real tokens of "
    "padded_right), gradient (of the sum of output times of_output). A layout names dimensions: B batch, N targets, "
    "M keys of a cross pattern, D width, H heads, E = D / H; numbers are other sizes. D holds the heads one after "
    "another: feature h E + e is feature e of head h. Masks are true at padding. Arrays are in row-major order. "
    "`options` are all options of the layer; sizes in tokens are below N, so that a selection leaves tokens out. In "
    "row 0, inputs are standard normal, and tokens 4 and 5 (of the source in a cross pattern) equal 2 and 3: scores "
    "are tied. Row 1 is 3 times as large. Weights are those of the initialization, limited to [-2, 2], plus normal "
    "noise of 0.2. Gates are therefore open and closed, and maxima such as max(|q n|, 1) take either side. "
    "`tolerance` is relative to 1 + |expected|, by the type of a port's vector. A port in float32 reads the inputs and "
    "weights rounded to float32; a choice between nearly equal scores can then differ, which is no fault."
)


@dataclass
class Log:
    """The vectors of a module by name, and one line for each."""

    module: Module
    letters: str
    vectors: dict[str, Tensor] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, name: str, value: Any, meaning: str, parts: Mapping[str, str] = OUTPUTS, **facts: Any) -> None:
        """Add every tensor in ``value``; of a name that occurs again, the count is added."""
        letters = "DHE" if name.startswith("weights/") else self.letters
        for path, x in _tensors(value, [*parts]):
            count = sum(key.partition("#")[0] == name + path for key in self.vectors)
            key = f"{name}{path}{f'#{count + 1}' if count else ''}"
            part = parts.get(path[1:], "")
            text = f"{meaning} {path[1:]}: {part}" if part else meaning
            self.vectors[key] = x.detach().clone().contiguous()
            self.rows.append(
                {"name": key, "shape": [*x.shape], "layout": layout(x, letters), "meaning": text.strip(), **facts}
            )

    def stages(self, run: Callable[[], Any], case: str) -> Any:
        """Add the result of each submodule and each method of :data:`STAGES` that ``run`` calls, and return its own."""
        modules = [*self.module.named_modules()]
        methods = [
            (part, name, f"{case}/{path}.{name}".replace("/.", "/"))
            for path, part in modules
            for name in STAGES
            if inspect.isfunction(method := getattr(type(part), name, None)) and not _is_of_torch(method)
        ]
        for part, name, stage in methods:
            setattr(part, name, self._recorded(stage, getattr(part, name), STAGES[name]))
        hooks = [
            submodule.register_forward_hook(
                lambda part, _, output, name=name: self.add(f"{case}/{name}", output, _formula(part))
            )
            for name, submodule in modules
            if not [*submodule.children()]
        ]
        try:
            return run()
        finally:
            for part, name, _ in methods:
                delattr(part, name)
            for hook in hooks:
                hook.remove()

    def _recorded(self, stage: str, method: Callable[..., Any], parts: Mapping[str, str]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            result = method(*arguments, **options)
            attributes = (inspect.getdoc(type(result)) or "").replace("Attributes:", "Args:")
            self.add(stage, result, _first_line(method), parts or argument_texts(attributes) or OUTPUTS)
            return result

        return call


def layout(x: Tensor, letters: str) -> str:
    """Return the names of the dimensions of ``x``: ``B H N E``; sizes without a name in ``letters`` are numbers."""
    names = {SIZES[letter]: letter for letter in letters}
    sizes = enumerate(x.shape)
    return " ".join("2" if axis and size == SIZES["B"] else names.get(size, str(size)) for axis, size in sizes)


def _is_of_torch(defined: Any) -> bool:
    return defined.__module__.partition(".")[0] in ("torch", "builtins")


def _formula(module: nn.Module) -> str:
    if isinstance(module, nn.Linear):
        return "x weight^T + bias" if module.bias is not None else "x weight^T"
    return f"{type(module).__name__}({module.extra_repr()}): {_first_line(type(module))}"


def _first_line(documented: object) -> str:
    return (inspect.getdoc(documented) or "").partition("\n")[0]


def _tensors(value: Any, names: Sequence[str] = (), path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors in nested results, with the path of each; the items of a tuple have ``names``, or numbers."""
    if isinstance(value, Tensor):
        yield path, value
    elif hasattr(value, "_asdict"):
        yield from _tensors(value._asdict(), names, path)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _tensors(item, names, f"{path}.{name}")
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for index, item in enumerate(value):
            yield from _tensors(item, names, f"{path}.{names[index] if len(value) <= len(names) else index}")


def definitions(module: Module) -> dict[str, str]:
    """Return the source of the reference form, the stages and the parts, and the functions and constants they name."""
    found: dict[str, str] = {}
    names = ("reference", "compute_row", "write", *STAGES)
    pending: list[tuple[str, Any]] = [(name, getattr(module, name, None)) for name in names if name != "attend"]
    for path, part in [*module.named_modules()][1:]:
        if not _is_of_torch(type(part)):
            constants = {name: x for name, x in vars(part).items() if name != "training" and not name.startswith("_")}
            pending += [(f"{path}.{name}", x) for name, x in constants.items()]
            for cls in (cls for cls in type(part).__mro__ if not _is_of_torch(cls) and cls.__name__ not in found):
                found[cls.__name__] = inspect.getsource(cls)
                functions = filter(inspect.isfunction, map(inspect.unwrap, filter(callable, vars(cls).values())))
                pending += [(x, each.__globals__.get(x)) for each in functions for x in names_in(each.__code__)]
    while pending:
        name, value = pending.pop(0)
        function = inspect.unwrap(getattr(value, "__func__", value)) if callable(value) else value
        if name in found or getattr(function, "__module__", None) == Attention.__module__:
            continue
        if inspect.isfunction(function) and not _is_of_torch(function):
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
                text = f"`{name}` of {type(part).__name__}({part.extra_repr()})"
            meanings[f"{path}.{name}".lstrip(".")] = text
    return meanings


def effective_options(cls: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options of a layer: those given, and defaults, of which sizes in tokens are at most :data:`SMALL`."""
    if hasattr(cls, "parts"):  # a stack, which has the options of its parts
        return dict(given)
    defaults = {name: x.default for name, x in inspect.signature(cls).parameters.items() if x.default is not x.empty}
    options = {**cls.common_options(), **defaults}
    options.pop("layer_position", None)  # the place in a network, which is no option
    small = {name: most for name, most in SMALL.items() if type(options.get(name)) is int and options[name] > most}
    return {**options, **small, **given}


def drawn_inputs(pattern: Pattern, normal: Callable[..., Tensor]) -> Inputs:
    """Return normal inputs; those of row 1 are larger, and two tokens of row 0 occur twice, so that scores are tied."""
    lengths = (SIZES["N"], SIZES["M"], SIZES["M"]) if pattern.is_cross else (SIZES["N"],)
    inputs = Inputs(*(normal(SIZES["B"], length, SIZES["D"]) for length in lengths))
    for x in inputs.tensors().values():
        x[1] *= 3.0
    source = inputs.query if inputs.key is None else inputs.key
    source[0, 4:6] = source[0, 2:4]
    return inputs


def golden_vectors(
    attention: str | type[Attention], pattern: Pattern, options: Mapping[str, Any]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the vectors of an attention by name, and their manifest.

    Raises:
        UserError: the attention does not support the pattern or an option.
    """
    subject = subject_of(attention, pattern, options=options)
    options = effective_options(subject.cls, options)
    subject = replace(subject, options=options)
    module = subject.build(embed_dim=SIZES["D"], num_heads=SIZES["H"]).double()
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    inputs = drawn_inputs(pattern, normal)
    log, meanings = Log(module, "BNDHE" + "M" * pattern.is_cross), weight_meanings(module)
    with torch.no_grad():
        for parameter in module.parameters():  # no weight is zero or one
            parameter.clamp_(-2.0, 2.0).add_(0.2 * normal(*parameter.shape))
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
                text = f"outputs of reading {', '.join(map(str, parts))} tokens"
                log.add(f"{case}/output", output, text, calls=parts)
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
        "format": 2,
        "attention": subject.name,
        "pattern": str(pattern),
        "options": options,
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


def safetensors() -> Any:
    """Return the module that reads and writes numpy arrays; UserError with the extra that has it."""
    try:
        import safetensors.numpy
    except ImportError as error:
        raise UserError("golden vectors require an extra: `pip install 'cab-benchmark[testing]'`") from error
    return safetensors.numpy
