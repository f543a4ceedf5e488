"""The benchmark for attention mechanisms. Import from here; torch is loaded only when it is needed."""

from __future__ import annotations

import importlib
from typing import Any

_EXPORTS = {
    "Attention": "cab.attention",
    "AttentionFactory": "cab.backbone",
    "Backbone": "cab.backbone",
    "Batches": "cab.task",
    "LayerPosition": "cab.attention",
    "Metric": "cab.metric",
    "PaddingMasks": "cab.padding",
    "ParamGroupOverride": "cab.training",
    "Pattern": "cab.patterns",
    "DecodeState": "cab.attention",
    "Task": "cab.task",
    "UnsupportedError": "cab.errors",
    "UserError": "cab.errors",
    "build_attention": "cab.registry.build",
    "build_backbone": "cab.registry.build",
    "load_results": "cab.records.results",
    "recompute": "cab.training",
    "register_attention": "cab.registry.registries",
    "register_backbone": "cab.registry.registries",
    "register_task": "cab.registry.registries",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'cab' has no attribute '{name}'")
    return getattr(importlib.import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return __all__
