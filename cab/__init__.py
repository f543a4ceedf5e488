"""Public API of the benchmark for attention mechanisms.

Names are imported on first use, so ``import cab`` does not load torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from cab import executed

executed.install(__file__)

if TYPE_CHECKING:
    from cab.attention import Attention as Attention, DecodeState as DecodeState, LayerPosition as LayerPosition
    from cab.backbone import AttentionFactory as AttentionFactory, Backbone as Backbone
    from cab.errors import UnsupportedError as UnsupportedError, UserError as UserError
    from cab.metric import Metric as Metric
    from cab.padding import PaddingMasks as PaddingMasks
    from cab.patterns import Pattern as Pattern
    from cab.registry.build import build_attention as build_attention, build_backbone as build_backbone
    from cab.registry.interop import FlaLayer as FlaLayer, use_in_transformers as use_in_transformers
    from cab.registry.registries import (
        register_attention as register_attention,
        register_backbone as register_backbone,
        register_task as register_task,
    )
    from cab.replay import Replay as Replay
    from cab.results.load import load_results as load_results
    from cab.results.published import with_composites as with_composites
    from cab.task import Batches as Batches, Task as Task
    from cab.training import ParamGroupOverride as ParamGroupOverride, recompute as recompute

_EXPORTS = {
    name: module
    for module, names in {
        "cab.attention": ("Attention", "DecodeState", "LayerPosition"),
        "cab.backbone": ("AttentionFactory", "Backbone"),
        "cab.errors": ("UnsupportedError", "UserError"),
        "cab.metric": ("Metric",),
        "cab.padding": ("PaddingMasks",),
        "cab.patterns": ("Pattern",),
        "cab.registry.build": ("build_attention", "build_backbone"),
        "cab.registry.interop": ("FlaLayer", "use_in_transformers"),
        "cab.registry.registries": ("register_attention", "register_backbone", "register_task"),
        "cab.replay": ("Replay",),
        "cab.results.load": ("load_results",),
        "cab.results.published": ("with_composites",),
        "cab.task": ("Batches", "Task"),
        "cab.training": ("ParamGroupOverride", "recompute"),
    }.items()
    for name in names
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'cab' has no attribute '{name}'")
    return getattr(importlib.import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return __all__
