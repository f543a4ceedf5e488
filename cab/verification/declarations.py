"""Intended deviations of registered attentions, by name; other classes declare them as class attributes.

``selects_tokens``: outputs read a selection of the tokens, as published.
``unused_parameters``: prefixes of the names of parameters that short sequences do not use.
"""

from __future__ import annotations

from typing import Any

_SELECTING = (
    *("adaptive_span", "axial", "bigbird", "cluster_former", "compressive", "diag_attention", "etc", "image_local"),
    *("local", "logsparse", "longformer", "moba", "none", "poolingformer", "reformer", "routing", "sparse_transformer"),
    *("transformer_xl", "yoso"),
)

DECLARED: dict[str, dict[str, Any]] = {name: {"selects_tokens": True} for name in _SELECTING}
DECLARED["compressive"]["unused_parameters"] = ("compress.",)
DECLARED["mca"] = {"unused_parameters": ("q_proj.", "k_proj.", "compress_k.", "compress_v.")}
DECLARED["nsa"] = {"unused_parameters": ("compress_k.", "compress_v.")}
