"""Subjects of a measurement: attentions with options, and the projections alone."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, cast

import torch
from torch import Tensor, nn

from cab.attention import Attention
from cab.composite import Composite
from cab.efficiency.setting import Setting, appendix_g
from cab.efficiency.workload import Workload
from cab.errors import UserError
from cab.patterns import Pattern
from cab.registry.build import make_attention
from cab.registry.names import is_file, is_stack
from cab.registry.registries import ATTENTIONS
from cab.registry.specs import by_part
from cab.registry.stacks import StackEntry
from cab.spec import Spec
from cab.verification.foreign import ForeignModule, parse_options, subject_class
from cab.verification.inputs import arguments_of
from cab.verification.suite import subject_of

BASELINES = ("vanilla", "eager")
"""Softmax attention, fused and materialized; included in every measurement."""

FUSED = ("flash", "cudnn", "efficient")
"""Backends of softmax attention on CUDA."""

SOFTMAX_LABELS = (BASELINES[0], *(f"{BASELINES[0]}@{backend}" for backend in FUSED))
"""Labels of fused softmax attention; other subjects are relative to the fastest that is measured."""

PROJECTIONS = "projections"


class Measurable(Protocol):
    """An object with a label that can be built and timed in some patterns."""

    @property
    def label(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def patterns(self) -> tuple[Pattern, ...]: ...

    def build(self, pattern: Pattern, setting: Setting, *, dropout: float = 0.0) -> nn.Module: ...


@dataclass(frozen=True)
class AttentionSubject:
    """An attention, written as ``name`` or ``name:option=value:...`` with a registered name or ``FILE.py:Class``."""

    label: str
    name: str
    cls: type[nn.Module]
    patterns: tuple[Pattern, ...]
    complexity: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    kind: str = "attention"
    phases: Mapping[str, Callable[..., Workload]] = field(default_factory=dict)
    """Workloads other than :data:`cab.efficiency.workload.PHASES`."""
    backend: str = ""
    """Backend of :mod:`cab.kernels` that must compute it; empty for the default choice."""

    def on(self, backend: str) -> Self:
        """Return the subject computed by a named backend."""
        return dataclasses.replace(self, label=f"{self.label}@{backend}", backend=backend)

    @classmethod
    def parse(cls, text: str) -> AttentionSubject:
        """Parse an attention; raises UserError for an unknown name or option."""
        name, *pairs = text.split(":")
        while pairs and "=" not in pairs[0] and (is_file(name) or is_stack(name)):
            name, pairs = f"{name}:{pairs[0]}", pairs[1:]
        entry = ATTENTIONS.get(name)
        options = entry.check_options(by_part(parse_options(pairs)), "attention")
        label = ":".join([entry.label, *pairs])
        return cls(label, entry.name, entry.cls, entry.patterns, entry.complexity, options)

    def all_options(self, pattern: Pattern) -> dict[str, Any]:
        """Return the given options, then those of Appendix G (pattern NS only), then the defaults of the class."""
        entry = ATTENTIONS.get(self.name)
        paper = appendix_g()["options"] if pattern is Pattern.NS else {}
        is_stack = isinstance(entry, StackEntry)
        defaults = merged(entry.options, dict.fromkeys(entry.options, paper) if is_stack else paper)
        return merged(defaults, self.options)

    def for_length(self, length: int) -> AttentionSubject:
        """Return the subject that Appendix G measures at ``length``: ProbSparse with Skyformer's factor.

        The factor is num_features / ln(length), so that the number of selected queries is close to the number of
        features of other methods: 18 to 24 instead of the 30 to 50 of factor 5.
        """
        option = appendix_g()["features_over_log_length"].get(self.name)
        factor = math.ceil(appendix_g()["options"]["num_features"] / math.log(max(2, length)))
        return dataclasses.replace(self, options={option: factor, **self.options}) if option else self

    def build(self, pattern: Pattern, setting: Setting, *, dropout: float = 0.0) -> nn.Module:
        return make_attention(
            Spec(self.name, self.all_options(pattern)),
            pattern,
            embed_dim=setting.embed_dim,
            num_heads=setting.num_heads,
            dropout=dropout,
        )


def merged(options: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with those values that are given, also in the parts of a stack."""
    return {
        name: merged(value, given.get(name, {})) if isinstance(value, Mapping) else given.get(name, value)
        for name, value in options.items()
    }


class ForeignSubject(AttentionSubject):
    """A module of another package: ``hf:TYPE``, ``package.module:name`` or ``FILE.py:name``, as in `cab verify`."""

    def build(self, pattern: Pattern, setting: Setting, *, dropout: float = 0.0) -> nn.Module:
        sizes = {"embed_dim": setting.embed_dim, "num_heads": setting.num_heads}
        accepted = arguments_of(getattr(self.cls, "factory", self.cls))
        options = {name: size for name, size in sizes.items() if name in accepted}
        module = subject_of(self.cls, pattern, options=options).build(dropout=dropout)
        if module.embed_dim != setting.embed_dim:
            raise UserError(f"{self.label} has width {module.embed_dim}, not {setting.embed_dim}")
        return cast("nn.Module", module)


def parse_subject(text: str) -> AttentionSubject:
    """Return the subject of an attention with options, or of a module of another package; UserError for other names."""
    if is_stack(text.partition("=")[0]):
        return AttentionSubject.parse(text)
    words = text.split(":")
    file = ":".join(words[:2]) if is_file(words[0]) and len(words) > 1 else ""
    is_other = bool(file) or words[0] == "hf" or ("." in words[0] and not is_file(words[0]))
    cls = subject_class(file or text) if is_other else None
    if cls is not None and issubclass(cls, ForeignModule):
        return ForeignSubject(text, text, cls, cls.patterns)
    return AttentionSubject.parse(text)


@dataclass(frozen=True)
class ProjectionsSubject:
    """The query, key, value and output maps alone: a lower bound for attentions that have them."""

    label: str = PROJECTIONS
    kind: str = "projections"
    patterns: tuple[Pattern, ...] = tuple(Pattern)

    def build(self, pattern: Pattern, setting: Setting, *, dropout: float = 0.0) -> nn.Module:  # noqa: ARG002
        return Projections(setting.embed_dim)


class Projections(nn.Module):
    """W_o (W_q query + W_k key + W_v value) for equal lengths, which uses every map in forward and backward."""

    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(embed_dim, embed_dim) for _ in range(4))

    def forward(self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None) -> Tensor:
        key, value = (query if x is None else x for x in (key, value))
        return self.out_proj(torch.add(self.q_proj(query), self.k_proj(key)).add_(self.v_proj(value)))


def has_projections(module: nn.Module) -> bool:
    """Return whether the module has query, key and value projections; S4D does not."""
    parts = (
        [part for part in module.layers.modules() if isinstance(part, Attention)]
        if isinstance(module, Composite)
        else [module]
    )
    return all(hasattr(part, name) for part in parts for name in ("q_proj", "k_proj", "v_proj"))


def select_attentions(texts: list[str], patterns: list[Pattern]) -> list[AttentionSubject]:
    """Return the given attentions, or all that support one of ``patterns``, after the baselines.

    Raises:
        UserError: an unknown name or option, or a given attention that supports none of the patterns.
    """
    everything = [entry.name for entry in ATTENTIONS.load() if entry.name != "none"]
    named = [parse_subject(text) for text in texts or everything]
    for subject in named if texts else ():
        if not set(subject.patterns) & set(patterns):
            supported = " ".join(subject.patterns)
            raise UserError(f"'{subject.label}' does not support pattern {patterns[0]} (supported: {supported})")
    subjects: dict[str, AttentionSubject] = {}
    for subject in [*map(AttentionSubject.parse, BASELINES), *named]:
        if subjects.setdefault(subject.label, subject).name != subject.name:
            other = subjects[subject.label].name
            raise UserError(f"{subject.name} and {other} have the same name in tables; rename one class")
    return [subject for subject in subjects.values() if set(subject.patterns) & set(patterns)]
