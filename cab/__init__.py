"""The benchmark for attention mechanisms. Import from here; torch is loaded only when it is needed."""

from __future__ import annotations

import importlib
from typing import Any

_EXPORTS = {
    "Attention": "cab.attention",
    "Backbone": "cab.backbone",
    "Depth": "cab.attention",
    "Metric": "cab.record",
    "Padding": "cab.padding",
    "ParameterRule": "cab.learning",
    "Pattern": "cab.patterns",
    "State": "cab.decoding",
    "Task": "cab.task",
    "UserError": "cab.errors",
    "build_attention": "cab.build",
    "build_backbone": "cab.build",
    "load_results": "cab.results",
    "register_attention": "cab.registry",
    "register_backbone": "cab.registry",
    "register_task": "cab.registry",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'cab' has no attribute '{name}'")
    return getattr(importlib.import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return __all__
