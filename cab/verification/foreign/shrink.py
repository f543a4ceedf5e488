"""Tiny configurations of Hugging Face models: one layer of each kind, and sizes by the meaning of a field's name.

No model type is named. Experts, ranks, windows, chunks and the top-k of an index become smaller than the shortest
sequences of most checks, so a tiny model selects and compresses as the original does.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

Fields = dict[str, Any]
"""The fields of a configuration."""

RULES: dict[str, int | str] = yaml.safe_load(Path(__file__).with_name("shrink.yaml").read_text(encoding="utf-8"))
"""Sizes by a pattern of the name of a configuration field."""

# Names of fields:
LAYERS = re.compile(r"(num_|n_|num_hidden_|num_decoder_|num_encoder_|encoder_|decoder_)(layers?|blocks)")
HEADS = re.compile(r"num_attention_heads|n_heads?|num_heads|decoder_attention_heads")
LAYER_SETS = re.compile(r"idxs?$|indices|layer_ids|_layers$")  # numbers of the layers of a kind
LAYER_PATTERNS = re.compile(r"block_types?$|layer_types|_pattern$|attn_layers$")  # words that are repeated
DROPOUT = re.compile(r"dropout|drop_?rate|pdrop|layerdrop|jitter")
PARTS = re.compile(r"config$|encoder$|decoder$")  # configurations inside a configuration
UNSET = re.compile(r"head|top_?k|size|dim|rank|experts|budget|ratio|index|multiplier_")  # None is replaced with 4 ...
OPTIONAL = re.compile(r"window|chunk|quant|dtype|pruned|mtp|pad|special|indices")  # ... unless it switches a part off
FAST_PATHS = re.compile(r"use_(mambapy|mamba_kernels|mem_eff_path)|axial_pos_embds")  # become False
SAME = re.compile(r"model_type|transformers_version|chunk_size_(feed_forward|lm_head)|.*label.*")  # never change


def tiny_configs(model_type: str, width: int, heads: int) -> Iterator[tuple[str, Fields]]:
    """Yield type and fields of tiny configurations of the text part of a model type, the most complete first.

    The first have the kinds of layers that the modeling source names and the default lacks. The last have values in
    fields that are None by default, or two layers of each kind.
    """
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    default = AutoConfig.for_model(model_type)
    if not default.is_encoder_decoder and default.get_text_config().model_type in MODEL_MAPPING_NAMES:
        default = default.get_text_config()
    fields = default.to_dict()
    own = vars(default)
    if fields.get("layer_types") != own.get("layer_types"):  # a dict of released files, which counts an MLP as a layer
        fields |= {name: own[name] for name in fields if "layer" in name and name in own}
    richer = with_kinds(fields, kinds_in_source(default.model_type))
    for copies, fills in ((1, False), (1, True), (2, False), (2, True)):
        for chosen in (richer, fields) if richer != fields else (fields,):
            yield default.model_type, Shrinker(width, heads, copies, fills).shrunk(chosen)


def kinds_in_source(model_type: str) -> list[str]:
    """Return the kinds of layers that a modeling file names. It is not imported: that would load GPU kernels."""
    from transformers import configuration_utils
    from transformers.models.auto.configuration_auto import model_type_to_module_name

    spec, name = importlib.util.find_spec("transformers"), model_type_to_module_name(model_type)
    file = Path(spec.origin or "" if spec else "").parent / "models" / name / f"modeling_{name}.py"
    source = file.read_text(encoding="utf-8") if file.is_file() else ""
    kinds = getattr(configuration_utils, "ALLOWED_ATTN_LAYER_TYPES", ())
    return [kind for kind in kinds if re.search(rf"[\"']{kind}[\"']", source)]


def with_kinds(fields: Fields, kinds: list[str]) -> Fields:
    """Return the fields with the ``kinds`` of layers that a default with a single kind, or none, lacks."""
    more, count = dict(fields), layer_count(fields)
    known = list(dict.fromkeys(fields.get("layer_types") or ()))
    new = [kind for kind in kinds if kind not in known]
    if "layer_types" in fields and new and len(known) < 2:
        more["layer_types"] = ([*new, *known] * count)[:count]
    empty = [name for name, value in fields.items() if value is None and re.search(r"attn_layer_(indices|ids)", name)]
    return more | {name: list(range(1, count, 2)) for name in empty}


def layer_count(fields: Fields) -> int:
    """Return the number of layers, 2 if no field has it."""
    return next((x for name, x in fields.items() if LAYERS.fullmatch(name) and type(x) is int and x > 0), 2)


@dataclass
class Shrinker:
    """Shrinks the fields of a configuration.

    Attributes:
        copies: layers of each kind.
        fills: whether sizes that are None by default have a value.
    """

    width: int
    heads: int
    copies: int
    fills: bool

    @property
    def head(self) -> int:
        """Width of a head."""
        return max(2, self.width // self.heads)

    @property
    def half_head(self) -> int:
        """About half the width of a head, an even number."""
        return max(2, self.head // 4 * 2)

    def shrunk(self, fields: Fields) -> Fields:
        """Return the fields that change."""
        default_heads = next((x for name, x in fields.items() if HEADS.fullmatch(name) and type(x) is int), 8)
        tiny, count = self._layers(fields)
        for name, value in (fields | tiny).items():
            is_settled = SAME.fullmatch(name) or (name in tiny and type(value) is int)
            new = None if is_settled else self._field(name, value, default_heads)
            if new is not None:
                tiny[name] = new
        return tiny | self._related(fields, tiny, count)

    def _field(self, name: str, value: Any, default_heads: int) -> Any:
        """Return the new value of a field, or None if it does not change."""
        if type(value) is int and value > 0:
            return self._size(name, value, default_heads)
        if type(value) is float and DROPOUT.search(name):
            return 0.0
        if value is True and FAST_PATHS.fullmatch(name):
            return False
        if value is None and self.fills and UNSET.search(name) and not OPTIONAL.search(name):
            return self._size(name, 4, default_heads)
        if isinstance(value, list) and value and all(type(x) is int and x > 64 for x in value):
            return [self._size(name, x, default_heads) or x for x in value]
        if not isinstance(value, dict) or not value or name.startswith("rope"):
            return None
        if name == "compress_rates":
            return {key: min(x, 4 * place) for place, (key, x) in enumerate(value.items(), 1)}
        if PARTS.search(name) and not all(isinstance(x, dict) for x in value.values()):
            return {key: x for key, x in value.items() if key == "model_type"} | self.shrunk(value)
        if all(isinstance(x, dict) for x in value.values()):
            sizes = Shrinker(self.width, self.heads, 1, self.fills)
            return {key: x | {k: y for k, y in sizes.shrunk(x).items() if k in x} for key, x in value.items()}
        return None

    def _size(self, name: str, value: int, default_heads: int) -> int | None:
        """Return the size of a field by its name, or None if no rule applies."""
        rule = next((rule for pattern, rule in RULES.items() if re.search(pattern, name)), None)
        if rule is None or isinstance(rule, int):
            return rule
        if rule.startswith("<="):
            return min(value, int(rule[2:]))
        groups = self.heads if value >= default_heads else 2 - self.heads % 2
        sizes = {"width": self.width, "inner": 2 * self.width, "heads": self.heads, "inner_heads": 2 * self.heads}
        sizes |= {"head": self.head, "half_head": self.half_head, "groups": min(value, groups)}
        sizes |= {"kernel": min(value, 4 - value % 2), "token": value % 8, "same": value}
        return (sizes | {"small": value if value < 64 else 8})[rule]

    def _layers(self, fields: Fields) -> tuple[Fields, int]:
        """Return the fields that describe single layers, for one layer or more of each kind, and their number."""
        count, sequences = layer_count(fields), {name: x for name, x in fields.items() if isinstance(x, list) and x}
        plain = {name: x for name, x in sequences.items() if not isinstance(x[0], list | dict)}
        lists = {name: x for name, x in plain.items() if len(x) == count > 1}  # one value per layer
        others = {name: x for name, x in plain.items() if name not in lists}
        numbers = {name: x for name, x in others.items() if all(type(i) is int for i in x)}
        # sets: numbers of the layers of a kind; parts: layers per stage; patterns: kinds that take turns
        sets = {name: x for name, x in numbers.items() if LAYER_SETS.search(name) and max(x) < count}
        parts = {name: x for name, x in numbers.items() if name not in sets and len(x) > 1 and sum(x) == count}
        stages = [name for name, x in fields.items() if re.fullmatch(r"n_\w+_layers", name) and type(x) is int]
        stages = stages if sum(fields[name] for name in stages) == count else []
        words = {name: x for name, x in others.items() if LAYER_PATTERNS.search(name) and isinstance(x[0], str)}
        patterns = {name: list(dict.fromkeys(x)) for name, x in words.items()}
        numbered = {
            name: {int(i): value for i, value in x.items()}
            for name, x in fields.items()
            if isinstance(x, dict) and x and "label" not in name and all(str(i).isdigit() for i in x)
        }
        chosen = self._chosen(count, [*lists.values()], [*sets.values(), *numbered.values()])
        if fields.get("num_kv_shared_layers") and self.copies == 1:
            chosen *= 2
        for x in (*parts.values(), *filter(None, [stages])):
            chosen = (chosen * len(x))[: len(x)]
        for x in patterns.values():
            chosen = chosen if len(chosen) >= len(x) else [0] * len(x)
        tiny: Fields = {name: [x[i] for i in chosen] for name, x in lists.items()}
        tiny |= {name: [1] * len(x) for name, x in parts.items()} | dict.fromkeys(stages, 1)
        tiny |= {name: [new for new, i in enumerate(chosen) if i in x] for name, x in sets.items()}
        for name, by_layer in numbered.items():
            digits = len(next(iter(fields[name])))
            tiny[name] = {f"{new:0{digits}d}": by_layer[i] for new, i in enumerate(chosen) if i in by_layer}
        for name, x in patterns.items():
            tiny[name] = x if name.endswith("_pattern") else (x * len(chosen))[: len(chosen)]
        counts = (name for name, x in fields.items() if LAYERS.fullmatch(name) and type(x) is int and x > 0)
        return tiny | dict.fromkeys(counts, len(chosen)), len(chosen)

    def _chosen(self, count: int, lists: list[list[Any]], sets: list[Any]) -> list[int]:
        """Return one layer of each kind; of more than four kinds, layers that cover every value of every field."""
        named = [x for x in lists if isinstance(x[0], str | bool) or len({*map(str, x)}) <= 3]
        kinds = [(*(str(x[i]) for x in named), *(i in x for x in sets)) for i in range(count)]
        chosen = [i for i, kind in enumerate(kinds) if kinds.index(kind) == i]
        if len(chosen) > 4:
            seen = [{*enumerate(kind)}.union(*map(enumerate, kinds[:i])) for i, kind in enumerate(kinds)]
            chosen = [i for i in range(count) if not i or seen[i] != seen[i - 1]]
        chosen = chosen * self.copies
        return chosen * 2 if len(chosen) == 1 else chosen

    def _related(self, fields: Fields, tiny: Fields, count: int) -> Fields:
        """Return the fields whose value depends on other fields."""
        hidden = next((x for name in ("hidden_size", "d_model", "n_embd") if (x := fields.get(name))), -1)
        more: Fields = {
            name: 2 * self.width
            for name, x in fields.items()
            if type(x) is int and x == 2 * hidden and tiny.get(name) == self.width
        }
        if fields.get("attention_head_dim") == 2 * hidden // (fields.get("num_attention_heads") or 1):
            more["attention_head_dim"] = 2 * self.head
        if fields.get("head_dim") and fields["head_dim"] == fields.get("qk_rope_head_dim"):
            more["head_dim"] = self.half_head
        if fields.get("num_kv_shared_layers"):
            more["num_kv_shared_layers"] = count // 2 if count > 3 else 0
        if fields.get("languages"):
            more["default_language"] = fields["languages"][0]
        if fields.get("use_sliding_window") is False:
            more |= {"use_sliding_window": True, "sliding_window": self._size("sliding_window", 8, 1)}
        if "qk_head_dim" in fields:
            more["qk_head_dim"] = 2 * self.half_head
        if fields.get("rotary_dim"):
            more["rotary_dim"] = self.half_head
        rotated = tiny.get("qk_rope_head_dim") or (tiny | more).get("head_dim") or self.head
        rotations = (name for name in ("rope_parameters", "rope_scaling") if isinstance(fields.get(name), dict))
        more |= {name: rotary(fields[name], rotated) for name in rotations}
        if type(share := fields.get("partial_rotary_factor")) is float:
            more["partial_rotary_factor"] = max(share, 4 / self.head)
        return more


def rotary(parameters: Fields, head: int) -> Fields:
    """Return rotary parameters for this head width: two pairs rotate at least, and lists have one value per pair."""
    if any(isinstance(x, dict) for x in parameters.values()):
        return {name: rotary(x, head) if isinstance(x, dict) else x for name, x in parameters.items()}
    new, share = dict(parameters), parameters.get("partial_rotary_factor") or 1.0
    pairs = max(2, int(head * share) // 2)
    if share != 1.0:
        new["partial_rotary_factor"] = 2 * pairs / head
    if new.get("mrope_section"):
        new["mrope_section"] = [pairs - 2 * (pairs // 3), pairs // 3, pairs // 3]
    for name in ("short_factor", "long_factor"):
        if new.get(name):
            new[name] = (list(new[name]) * pairs)[:pairs]
    return new
