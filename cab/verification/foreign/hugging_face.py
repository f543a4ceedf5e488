"""Whole Hugging Face models of one or two layers: ``cab verify hf:mamba2``.

The module is a complete model with random weights, called with ``inputs_embeds``. A mixer alone would not be
sufficient: masks and positions are prepared by the model. The padding mask becomes ``attention_mask``. Position ids are
passed if there is padding, as ``generate`` does, and left to the model otherwise, as a plain forward call does.
"""

from __future__ import annotations

import importlib
import inspect
import io
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice, product
from typing import Any, ClassVar, get_args

import torch
from torch import Tensor

from cab.errors import UserError, unknown_name
from cab.patterns import Pattern
from cab.verification.foreign.adapters import ForeignModule
from cab.verification.foreign.shrink import tiny_configs
from cab.verification.subject import HEADS, WIDTH

KERNELS = ("fla", "causal_conv1d", "mamba_ssm", "kernels")
"""Packages with GPU kernels, hidden while a model is built so that the PyTorch implementation runs."""

STATES = ("cache_params", "state")
"""Names of the cache argument of state space models."""

CACHES = (*STATES, "past_key_values", "cache")
"""Names of the cache argument, most specific first."""

OPTIONS = ("attn_implementation", "max_token_distance")
"""Options that are not fields of the configuration."""

TOKEN = 9
"""A token that is not special."""

WINDOWS = (
    "sliding_window",
    "attention_window",
    "attention_window_size",
    "attention_chunk_size",
    "sliding_window_size",
    "window_size",
)
"""Names of the number of tokens in a window."""


class HuggingFaceModel(ForeignModule):
    """A Hugging Face model of one or two layers with random weights, called with ``inputs_embeds``.

    Attributes:
        attempt: number of the tiny configuration.
        reads_tokens: whether the model requires tokens; their embeddings are replaced.
        max_token_distance: option of this name, or that of the sliding windows if every layer has one, or None.
    """

    package: ClassVar[str] = "transformers"
    prompt_padding_layouts: ClassVar[tuple[str, ...]]
    model_type: ClassVar[str]
    overrides: ClassVar[Mapping[str, Any]]
    attempt: ClassVar[int]
    reads_tokens: ClassVar[bool]

    def __init__(self, *, embed_dim: int = WIDTH, num_heads: int = HEADS) -> None:
        super().__init__()
        self.embed_dim = embed_dim
        config = self.config(embed_dim, num_heads)
        self.max_token_distance = self.overrides.get("max_token_distance", reach(config))
        implementation = {name: x for name, x in self.overrides.items() if name == "attn_implementation"}
        auto = importlib.import_module("transformers")
        is_causal = Pattern.CS in self.patterns
        with without_kernels():
            causal = auto.MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None) if is_causal else None
            is_part = is_causal and config.is_encoder_decoder
            text = config.get_text_config(decoder=True)
            if causal and type(config) is not type(text) is causal.config_class:
                config, is_part = text, True  # the type has more parts than text
            if is_causal:
                config.is_encoder_decoder, config.is_decoder = False, True
            build = causal._from_config if causal and is_part else auto.AutoModel.from_config
            model = build(config, **implementation)
            part = model.get_decoder() if is_part else model
        self.model = (part.model if part is model and is_part else part).float()
        names = inspect.signature(self.model.forward).parameters
        self.arguments = frozenset(names)
        self.cache_argument = next((name for name in CACHES if name in names), None)
        self._draw_weights()

    @classmethod
    def config(cls, width: int = WIDTH, heads: int = HEADS) -> Any:
        """Return the tiny configuration of this width, with the overrides."""
        from transformers import AutoConfig

        model_type, fields = next(islice(tiny_configs(cls.model_type, width, heads), cls.attempt, None))
        overrides = {name: x for name, x in cls.overrides.items() if name not in OPTIONS}
        return AutoConfig.for_model(model_type, **{**fields, **overrides})

    @classmethod
    def runs(cls) -> bool:
        """Return whether a model can be built and read some tokens."""
        try:
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                return bool(cls()(torch.randn(1, 24, WIDTH)).isfinite().all())
        except Exception:  # any exception of any model
            return False

    @classmethod
    def suggested_option(cls, message: str) -> str:
        """Return an option of the configuration whose value is in the message of an exception, and a smaller value."""
        fields = {**cls.overrides, **cls.config().to_dict()}  # the overrides first
        sizes = {name: value for name, value in fields.items() if type(value) is int and value > WIDTH}
        for name, value in sizes.items():
            if f"({value})" in message:
                option = f"hf:{cls.model_type}:{name}={WIDTH // HEADS}"
                return f"the configuration has {name}={value}: set another value, such as {option}"
        return ""

    @torch.no_grad()
    def _draw_weights(self) -> None:
        """Draw matrices with the scale of their input, so that every part of the model affects the output."""
        embeddings = self.model.get_input_embeddings()
        tables = {*embeddings.parameters()}  # several of some types
        for name, parameter in self.model.named_parameters():
            is_drawn = parameter.requires_grad and parameter not in tables and "A_log" not in name
            if is_drawn and parameter.dim() >= 2:
                parameter.normal_(std=parameter[0].numel() ** -0.5)
            if "pooler" in name:
                parameter.requires_grad_(False)  # not part of the last hidden states
        embeddings.requires_grad_(False)  # not used with inputs_embeds

    def forward(
        self, query: Tensor, *, query_padding_mask: Tensor | None = None, key_padding_mask: Tensor | None = None
    ) -> Tensor:
        if query.dtype is torch.float64:
            raise ValueError("models of transformers compute parts in float32; use float32 inputs")
        padding = query_padding_mask if query_padding_mask is not None else key_padding_mask
        masks = {} if padding is None else self._mask(padding, past=0)
        return self._call(query, **masks, use_cache=False).last_hidden_state

    def _call(self, query: Tensor, **arguments: Any) -> Any:
        """Call the model with those of the arguments that it has; if it reads tokens, a hook sets their embeddings."""
        accepted = {name: value for name, value in arguments.items() if name in self.arguments}
        if not self.reads_tokens:
            return self.model(inputs_embeds=query, **accepted)
        hook = self.model.get_input_embeddings().register_forward_hook(lambda *_: query)
        try:
            return self.model(torch.full(query.shape[:2], TOKEN, device=query.device), **accepted)
        finally:
            hook.remove()

    def _mask(self, padding: Tensor, *, past: int) -> dict[str, Any]:
        """Return the arguments for a padding mask [B, past + N] of all tokens read so far."""
        real = (~padding).long()
        if self.cache_argument in STATES:  # state space models: the mask of the new tokens
            return {"attention_mask": real[:, past:]}
        if Pattern.CS not in self.patterns:  # encoders: some count positions from another number than 0
            return {"attention_mask": real}
        return {"attention_mask": real, "position_ids": (real.cumsum(1) - 1).clamp(min=0)[:, past:]}

    def init_state(self, batch_size: int) -> dict[str, Tensor]:
        """Return the state before the first token."""
        padding = torch.zeros(batch_size, 0, dtype=torch.bool, device=self.model.device)
        return pack(self._new_cache(batch_size), batch_size) | {"padding": padding}

    def prefill(
        self, query: Tensor, state: dict[str, Tensor], *, query_padding_mask: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Read several tokens in one cached call; returns the outputs and the new state."""
        tensors = dict(state)
        read = tensors.pop("padding")
        mask = read.new_zeros(query.shape[:2]) if query_padding_mask is None else query_padding_mask
        padding, past, cache = torch.cat([read, mask], 1), read.shape[1], unpack(tensors)
        arguments = self._mask(padding, past=past) if padding.any() else {}
        if self.cache_argument in STATES:
            arguments["cache_position"] = torch.arange(past, padding.shape[1], device=query.device)
        if cache is not None:
            arguments[self.cache_argument or ""] = cache
        output = self._call(query, **arguments, use_cache=True)
        cache = getattr(output, self.cache_argument or "", None) or cache
        return output.last_hidden_state, pack(cache, query.shape[0]) | {"padding": padding}

    def step(
        self, query: Tensor, state: dict[str, Tensor], *, query_padding_mask: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Read one token [B, D] or [B, 1, D]; returns the output in the same shape and the new state."""
        mask = None if query_padding_mask is None else query_padding_mask.reshape(-1, 1)
        is_flat = query.dim() == 2
        output, state = self.prefill(query[:, None] if is_flat else query, state, query_padding_mask=mask)
        return (output[:, 0] if is_flat else output), state

    def _new_cache(self, batch_size: int) -> Any:
        """Return an empty cache: of the class in the model's own module, or the default of ``generate``.

        State space models receive None and create their cache.
        """
        module = type(self.model).__module__
        names = vars(sys.modules[module]).items()
        from transformers import Cache, DynamicCache

        own = [x for name, x in names if name.endswith("Cache") and getattr(x, "__module__", "") == module]
        argument = inspect.signature(self.model.forward).parameters.get(self.cache_argument or "")
        named = get_args(argument.annotation) if argument else ()
        # A class in the module can be the cache of a layer.
        caches = [x for x in own if self.cache_argument in STATES or issubclass(x, Cache) or x in named]
        if not caches and self.cache_argument in (None, *STATES):
            return None
        cls = caches[0] if caches else DynamicCache
        arguments = {"config": self.model.config, "batch_size": batch_size, "max_batch_size": batch_size}
        arguments |= {"dtype": torch.float32, "device": self.model.device}
        accepted = inspect.signature(cls).parameters
        return cls(**{name: value for name, value in arguments.items() if name in accepted})


@contextmanager
def without_kernels() -> Iterator[None]:
    """Hide packages with GPU kernels while a model is imported and built."""
    loaded = {name: sys.modules[name] for name in KERNELS if name in sys.modules}
    sys.modules.update(dict.fromkeys(KERNELS))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in KERNELS:
            del sys.modules[name]
        sys.modules.update(loaded)


def model_class(model_type: str, overrides: Mapping[str, Any]) -> type[HuggingFaceModel]:
    """Return the class for a model type of transformers, such as ``mamba2``, with overrides of its configuration.

    Raises:
        UserError: transformers is not installed, or the model type is unknown.
    """
    try:
        with without_kernels():
            auto = importlib.import_module("transformers.models.auto.modeling_auto")
    except ImportError as error:
        raise UserError(f"cannot import transformers ({error}); install it: `pip install transformers`") from error
    if model_type not in auto.MODEL_MAPPING_NAMES:
        raise unknown_name("Hugging Face model type", model_type, auto.MODEL_MAPPING_NAMES)
    is_encoder = model_type in auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES and not overrides.get("is_decoder")
    options = ",".join(f"{name}={value}" for name, value in overrides.items())
    name = f"hf:{model_type}{f':{options}' if options else ''}"
    with without_kernels():
        fields = [tiny for _, tiny in tiny_configs(model_type, WIDTH, HEADS)]
        is_causal = (
            not is_encoder
            or importlib.import_module("transformers").AutoConfig.for_model(model_type).is_encoder_decoder
        )

    def subject(attempt: int, *, reads_tokens: bool) -> type[HuggingFaceModel]:
        has_window = any(type({**fields[attempt], **overrides}.get(window)) is int for window in WINDOWS)
        attributes = {
            "__module__": __name__,
            "model_type": model_type,
            "overrides": dict(overrides),
            "attempt": attempt,
            "reads_tokens": reads_tokens,
            "patterns": (Pattern.CS,) if is_causal else (Pattern.NS,),
            "padding_layouts": ForeignModule.padding_layouts if is_causal else ("right",),
            "prompt_padding_layouts": ("left",) if has_window else ("right", "left"),  # windows count padding
        }
        return type(name, (HuggingFaceModel,), attributes)

    choices = product((False, True), range(len(fields)))
    tried = (subject(attempt, reads_tokens=reads_tokens) for reads_tokens, attempt in choices)
    return next((cls for cls in tried if cls.runs()), subject(0, reads_tokens=False))


def reach(config: Any) -> int | None:
    """Return the largest distance between tokens that a model connects if every layer has a window, else None."""
    fields = config.to_dict()
    size, kinds = fields.get("sliding_window"), {*(fields.get("layer_types") or ("sliding_attention",))}
    is_local = type(size) is int and kinds == {"sliding_attention"} and fields.get("use_sliding_window", True)
    return config.num_hidden_layers * (size - 1) if is_local else None


# --- caches as flat dicts of tensors, batch first ---

REST = "rest"
"""Key of everything except tensors: the bytes of the pickle, repeated for every row."""

RESTORE: dict[str, Callable[[Tensor], Tensor]] = {
    "rows": lambda x: x.clone(memory_format=torch.contiguous_format),
    "layer": lambda x: x.transpose(0, 1).contiguous(),
    "shared": lambda x: x[0].clone(),
}


def pack(cache: object, batch_size: int) -> dict[str, Tensor]:
    """Return the tensors of any ``cache`` object, each with ``batch_size`` rows in its first dimension.

    The cache is pickled with its tensors taken out. So no knowledge of its class is required, a step cannot modify the
    state that it received, and the rows of every tensor can be reordered. A tensor of shape [1, B, ...], such as the
    states of one layer in older caches, is transposed. A tensor without a batch dimension is repeated for every row.
    """
    tensors: list[Tensor] = []

    class Pickler(pickle.Pickler):
        def persistent_id(self, item: Any) -> int | None:
            if not isinstance(item, Tensor):
                return None
            tensors.append(item.detach().clone())
            return len(tensors) - 1

    stream = io.BytesIO()
    Pickler(stream).dump(cache)
    rest = torch.frombuffer(bytearray(stream.getvalue()), dtype=torch.uint8)
    state = {REST: rest.expand(batch_size, -1).clone()}
    for index, x in enumerate(tensors):
        if x.dim() > 0 and x.shape[0] == batch_size:
            state[f"rows {index}"] = x
        elif x.dim() > 1 and x.shape[0] == 1 and x.shape[1] == batch_size:
            state[f"layer {index}"] = x.transpose(0, 1).contiguous()
        else:
            state[f"shared {index}"] = x.expand(batch_size, *x.shape).clone()
    return state


def unpack(state: dict[str, Tensor]) -> Any:
    """Return a new cache object from the result of :func:`pack`; it shares no memory with ``state``."""
    named = [(name.split(), x) for name, x in state.items() if name != REST]
    tensors = {int(index): RESTORE[kind](x) for (kind, index), x in named}

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, index: Any) -> Tensor:
            return tensors[index]

    return Unpickler(io.BytesIO(bytes(state[REST][0].tolist()))).load()
