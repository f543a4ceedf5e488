"""Attentions with options: the fast form is the readable one, padding has no effect, decoding is the parallel form.

:mod:`tests.attentions.test_conformance` runs these checks with default options.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attentions.kernels.gathers import target_blocks
from attentions.synthesizer import VARIANTS
from cab import LayerPosition
from cab.registry.registries import ATTENTIONS
from tests.attentions.agreement import (
    assert_causal,
    assert_decodes,
    assert_forms_agree,
    assert_padding_is_nothing,
    make,
)

CONVOLVED = ("retention", "lightning", "gla", "hgrn2", "ssd", "deltanet", "gated_deltanet")
NSA = {"num_blocks": 3, "window_size": 5, "compress_size": 2, "compress_stride": 1}
LINFORMER = {"num_landmarks": 5, "max_length": 40}
EARLY, LATE = {"layer_position": LayerPosition(0, 2)}, {"layer_position": LayerPosition(1, 2)}

OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("flowformer", {"competition_clamp": None}),
    ("flash_quad", {"query_key_dim": 6, "scale_length": 9}),
    ("flash_gau", {"query_key_dim": 6, "group_size": 4}),
    ("set_transformer", {"num_inducing": 3}),
    ("set_transformer", {"num_inducing": 3, "feedforward": False}),
    ("luna", {"num_landmarks": 4}),
    ("luna", {"num_landmarks": 4, "tie_kv": False}),
    ("linformer", LINFORMER),
    ("linformer", LINFORMER | {"share": "key_value"}),
    ("kernelized", {}),
    ("yoso", {"num_hashes": 5}),
    ("yoso_e", {}),
    ("skyformer", {"num_landmarks": 5}),
    ("soft", {"num_landmarks": 4, "conv_kernel_size": 3}),
    ("lara", {"num_landmarks": 4}),
    ("nystromformer", {"num_landmarks": 4}),
    ("nystromformer", {"num_landmarks": 5, "conv_kernel_size": 3, "logit_scale": "linear"}),
    ("sigmoid", {}),
    ("sigmoid", {"bias": -1.5}),
    ("forgetting", {}),
    ("differential", {"layer_position": LayerPosition(2, 4)}),
    ("mla", {"rotary_dim": 6, "kv_rank": 5}),
    ("moba", {"block_size": 3, "top_k": 2}),
    ("nsa", {"block_size": 4, "num_blocks": 3, "window_size": 3, "compress_size": 4, "compress_stride": 2}),
    ("nsa", NSA | {"block_size": 2, "num_blocks": 4, "window_size": 1, "num_kv_heads": 3}),
    ("nsa", NSA | {"block_size": 4, "compression": "mean", "separate_kv": False}),
    ("nsa", NSA | {"block_size": 3, "compress_size": 3, "compress_stride": 3}),
    ("vanilla", {"num_kv_heads": 1}),
    ("vanilla", {"sink": "one"}),
    ("vanilla", {"sink": "learned", "num_kv_heads": 1}),
    ("eager", {"sink": "learned"}),
    *(("synthesizer", {"variant": variant, "max_length": 40, "rank": 3}) for variant in VARIANTS),
    ("rfa", {"num_features": 5}),
    ("rfa", {"gate": True}),
    ("based", {"feature_dim": 4}),
    ("based", {"feature_dim": 1}),
    ("dpfp", {"nu": 3}),
    ("dpfp", {"update": "sum", "nu": 2}),
    ("linear", {"kernel": "relu"}),
    ("linear", {"kernel": "leaky_relu"}),
    ("linear", {"kernel": "identity"}),
    ("cosformer", {"kernel": "elu1"}),
    ("cosformer", {"kernel": "leaky_relu"}),
    ("cosformer", {"reweight": False}),
    ("performer", {"denominator_floor": 0.1}),
    *((name, {"conv_size": size}) for name in CONVOLVED for size in (0, 3)),
    ("rwkv6", {"layer_position": LayerPosition(1, 3), "mix_rank": 2, "decay_rank": 3}),
    ("rwkv7", {"layer_position": LayerPosition(1, 3), "decay_rank": 2, "rate_rank": 3, "gate_rank": 30}),
    ("retention", {"value_expansion": 0.7}),
    ("gla", {"key_expansion": 1.3, "gate_rank": 2, "gate_temperature": 0.5}),
    ("ssd", {"state_size": 3, "value_expansion": 1.0}),
    ("hgrn2", {"layer_position": LayerPosition(2, 3)}),
    ("lightning", {"layer_position": LayerPosition(2, 3)}),
    ("lightning", {"variant": "released"}),
    ("lightning", {"variant": "repository", "layer_position": LayerPosition(1, 3)}),
    ("deltanet", {"negative_eigenvalues": True}),
    ("gated_deltanet", {"key_expansion": 0.3, "value_expansion": 3.0, "negative_eigenvalues": True}),
    ("norm_attention", {"kernel": "elu", "positions": "lrpe"}),
    ("norm_attention", {"kernel": "identity", "norm": "layer"}),
    ("norm_attention", {"kernel": "relu", "norm": "rms"}),
    ("diag_attention", {"block_size": 4}),
    ("diag_attention", {"block_size": 4, "positions": "lrpe"}),
    ("diag_attention", {"block_size": 4, "weights": "rela"}),
    ("diag_attention", {"block_size": 5, "weights": "rela", "positions": "lrpe"}),
    ("transnormer_t1", EARLY | {"block_size": 4, "positions": "lrpe"}),
    ("transnormer_t1", LATE),
    ("transnormer_t2", EARLY | {"block_size": 4}),
    ("transnormer_t2", LATE | {"positions": "lrpe"}),
]
CASES = [
    pytest.param(name, str(pattern), options, id="-".join((name, str(pattern), *map(str, options.values()))))
    for name, options in OPTIONS
    for pattern in ATTENTIONS.get(name).patterns
    if ("gate" not in options or pattern == "CS") and ("denominator_floor" not in options or pattern != "CS")
]


@pytest.mark.parametrize(("name", "pattern", "options"), CASES)
def test_options(name: str, pattern: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_blocks, "CPU_LIMIT", 1)  # several blocks of targets
    module = make(name, pattern, **options).eval()
    for parameter in (p for own, p in module.named_parameters() if own == "position_bias"):
        torch.nn.init.ones_(parameter)  # every pair has a weight
    assert_forms_agree(module, 37, 23)
    assert_forms_agree(module, 1, 1, masked=False)
    assert_padding_is_nothing(module, 11, 17)
    has_blocks = "block_size" in options and name.startswith(("diag", "transnormer"))
    if pattern == "CS" and not has_blocks:
        assert_causal(module, 9)
    if module.pattern.is_causal:
        assert_decodes(module, 14, 13, (6, 3, 1))
