"""Attentions with options: the fast form is the readable one, padding has no effect, decoding is the parallel form.

:mod:`tests.attentions.test_conformance` runs these checks with default options.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attentions import scatterbrain
from attentions.kernels import chunks
from attentions.synthesizer import VARIANTS
from cab import LayerPosition
from cab.registry.registries import ATTENTIONS
from tests.attentions.agreement import (
    assert_causal,
    assert_decodes,
    assert_dropout,
    assert_forms_agree,
    assert_padding_is_nothing,
    make,
)

CONVOLVED = ("retention", "lightning", "gla", "hgrn2", "ssd", "deltanet", "gated_deltanet")
NSA = {"num_blocks": 3, "window_size": 5, "compress_size": 2, "compress_stride": 1}
LINFORMER = {"num_landmarks": 5, "max_length": 40}
EARLY, LATE = {"layer_position": LayerPosition(0, 2)}, {"layer_position": LayerPosition(1, 2)}

MERGED_AND_HEADS = [{"spread": "merged"}, {"spread": "heads"}]
IMAGE = {"width": 9, "block_height": 3, "block_width": 4, "flange_height": 2, "flange_width": 3}

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
    ("fnet", {"norm": "ortho"}),
    ("mca", {"factor": 1}),
    ("mca", {"factor": 5, "reduction": "mean"}),
    ("luong", {"score": "dot"}),
    ("luong", {"score": "concat"}),
    ("luong", {"score": "concat", "scaled": True}),
]
CASES = [
    pytest.param(name, str(pattern), options, id="-".join((name, str(pattern), *map(str, options.values()))))
    for name, options in OPTIONS
    for pattern in ATTENTIONS.get(name).patterns
    if ("gate" not in options or pattern == "CS") and ("denominator_floor" not in options or pattern != "CS")
]

BLOCKS: list[tuple[str, str, dict[str, Any]]] = [
    ("local", "NS", {}),
    ("local", "NS", {"window_size": 1}),
    ("local", "NS", {"window_size": 5}),
    ("local", "NS", {"window_size": 40, "extent": "per_side"}),
    ("local", "CS", {}),
    ("local", "CS", {"window_size": 1}),
    ("local", "CS", {"window_size": 7, "extent": "per_side"}),
    ("local", "CS", {"window_size": 90}),
    ("longshort", "NS", {}),
    ("longshort", "NS", {"num_landmarks": 1, "window_size": 1}),
    ("longshort", "NS", {"num_landmarks": 5, "window_size": 4, "conv_kernel_size": 3}),
    ("longshort", "NS", {"window_size": 70}),
    ("longshort", "CS", {}),
    ("longshort", "CS", {"window_size": 6, "chunk_size": 4, "chunk_rank": 3}),
    ("longshort", "CS", {"window_size": 3, "chunk_size": 7}),
    ("longshort", "CS", {"window_size": 1, "chunk_size": 1, "chunk_rank": 2}),
    ("longshort", "CS", {"window_size": 5, "chunk_size": 90}),
    *(("scatterbrain", pattern, {"window": 3, "num_features": 6}) for pattern in ("NS", "CS")),
    *(("scatterbrain", pattern, {"window": 0, "num_features": 2}) for pattern in ("NS", "CS")),
    *(("scatterbrain", pattern, {"window": 70}) for pattern in ("NS", "CS")),
    ("logsparse", "NS", {}),
    ("logsparse", "NS", {"local": 3, "kernel_size": 2}),
    ("logsparse", "CS", {}),
    ("logsparse", "CS", {"local": 4, "restart": 9, "kernel_size": 3}),
    ("logsparse", "CS", {"restart": 1}),
    *(
        ("sparse_transformer", pattern, {"layout": layout, "stride": 7, "summary": 2} | spread)
        for pattern in ("NS", "CS")
        for layout in ("strided", "fixed")
        for spread in MERGED_AND_HEADS
    ),
    ("sparse_transformer", "NS", {"layout": "strided", "stride": 0}),
    ("sparse_transformer", "CS", {"stride": 3, "summary": 3, "spread": "heads"}),
    *(("axial", pattern, {"width": 6} | spread) for pattern in ("NS", "CS") for spread in MERGED_AND_HEADS),
    ("axial", "NS", {"width": 0}),
    ("image_local", "NS", {"block": 8, "memory": 5}),
    ("image_local", "CS", {"block": 8}),
    ("image_local", "CS", {"block": 1, "memory": 3}),
    ("image_local", "NS", IMAGE),
    ("image_local", "CS", IMAGE),
    ("longformer", "NS", {"window": 5, "num_globals": 3}),
    ("longformer", "NS", {"window": 2, "num_globals": 0}),
    ("longformer", "NS", {"window": 2, "dilation": 3, "num_globals": 2, "share_global": True}),
    ("longformer", "CS", {"window": 5}),
    ("longformer", "CS", {"window": 3, "dilation": 2, "num_globals": 4}),
    ("longformer", "CS", {"window": 3, "dilation": 2, "num_globals": 0}),
    ("etc", "NS", {"radius": 6, "num_globals": 5, "max_distance": 3}),
    ("etc", "NS", {"radius": 2, "num_globals": 0, "max_distance": 9}),
    ("etc", "NS", {"radius": 3}),
    ("bigbird", "NS", {"block_size": 3, "num_random": 2}),
    ("bigbird", "NS", {"block_size": 2, "num_random": 0, "num_window": 5}),
    ("poolingformer", "NS", {"window": 3, "pooled_window": 9}),
    ("poolingformer", "NS", {"window": 0, "pooled_window": 4, "kernel_size": 3, "pooling": "mean"}),
    ("poolingformer", "NS", {"window": 4, "pooled_window": 0}),
    ("adaptive_span", "NS", {"max_span": 20, "ramp": 4}),
    ("adaptive_span", "CS", {"max_span": 20, "ramp": 4}),
    ("adaptive_span", "CS", {"max_span": 9, "ramp": 4, "position": "none"}),
    ("adaptive_span", "CS", {"max_span": 30, "ramp": 4, "include_self": False}),
    ("transformer_xl", "NS", {}),
    ("transformer_xl", "CS", {"segment": 7, "memory": 5}),
    ("transformer_xl", "CS", {"segment": 4, "memory": 9}),
    ("transformer_xl", "CS", {"segment": 6, "memory": 0, "position": "none"}),
    ("transformer_xl", "CS", {"segment": 1, "memory": 3}),
    ("compressive", "CS", {"segment": 6, "memory": 5, "compressed": 4, "factor": 3}),
    ("compressive", "CS", {"segment": 4, "memory": 3, "compressed": 9, "factor": 2, "position": "none"}),
    ("funnel", "NS", {}),
    ("funnel", "NS", {"factor": 5, "position": "none"}),
    ("funnel", "NC", {"factor": 3}),
    ("reformer", "NS", {"num_buckets": 4, "chunk_size": 3, "rounds": 1}),
    ("reformer", "NS", {"num_buckets": 6, "chunk_size": 7, "rounds": 3, "key_norm": "unit"}),
    ("reformer", "NS", {"num_buckets": 4, "chunk_size": 1, "rounds": 2}),
    ("reformer", "NS", {"num_buckets": 4, "chunk_size": 3, "rounds": 1, "keys": "buckets"}),
    ("reformer", "NS", {"num_buckets": 6, "chunk_size": 2, "rounds": 3, "keys": "buckets"}),
    ("reformer", "CS", {"num_buckets": 4, "chunk_size": 2, "rounds": 3}),
    ("reformer", "CS", {"num_buckets": 2, "chunk_size": 40}),
    ("routing", "NS", {"num_clusters": 4, "window": 8}),
    ("routing", "NS", {"num_clusters": 3, "window": 90, "local_heads": False, "normalize": False}),
    ("routing", "CS", {"num_clusters": 4, "window": 5}),
    ("routing", "CS", {"num_clusters": 2, "window": 90, "local_heads": False}),
    ("cluster_former", "NS", {"num_clusters": 4, "chunk_size": 7}),
    ("cluster_former", "NS", {"num_clusters": 3, "chunk_size": 1}),
    ("sinkhorn", "NS", {"block_size": 6}),
    ("sinkhorn", "CS", {"block_size": 5}),
    ("sinkhorn", "CS", {"block_size": 8, "iterations": 2, "temperature": 2.0}),
]
WITHOUT_OWN_TOKEN = ("diag_attention", "transnormer_t1", "transnormer_t2", "mca")
"""Attentions whose output can be independent of its own token: clamped weights, groups that have not ended."""


@pytest.fixture(autouse=True)
def _in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CPU_WEIGHTS", 1)  # several blocks of targets
    monkeypatch.setattr(chunks, "CPU_ELEMENTS", 2**13)  # a few queries at a time


@pytest.mark.parametrize(("name", "pattern", "options"), CASES)
def test_options(name: str, pattern: str, options: dict[str, Any]) -> None:
    module = make(name, pattern, **options).eval()
    for parameter in (p for own, p in module.named_parameters() if own == "position_bias"):
        torch.nn.init.ones_(parameter)  # every pair has a weight
    assert_forms_agree(module, 37, 23)
    assert_forms_agree(module, 1, 1, masked=False)
    assert_padding_is_nothing(module, 11, 17)
    if pattern == "CS" and name not in WITHOUT_OWN_TOKEN:
        assert_causal(module, 9)
    if module.pattern.is_causal:
        assert_decodes(module, 14, 13, (6, 3, 1))


@pytest.mark.parametrize(("name", "pattern", "options"), BLOCKS)
def test_blocks(name: str, pattern: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows, buckets and segments: over several of them, within one, and over borders of pieces of few tokens."""
    module = make(name, pattern, **options).eval()
    assert_forms_agree(module, 131, 131)
    assert_forms_agree(module, 1, 1, masked=False)
    monkeypatch.setattr(scatterbrain, "CPU_BLOCK", 4)
    assert_forms_agree(module, 2, 2)
    assert_forms_agree(module, 37, 37)
    assert_padding_is_nothing(module, 29, 29)
    if module.pattern.is_causal:
        assert_decodes(module, 41, 41, (5, 1, 17, 1))
        if options.get("include_self", True):
            assert_causal(module, 30)


@pytest.mark.parametrize(("name", "pattern", "options"), BLOCKS)
def test_dropout(name: str, pattern: str, options: dict[str, Any]) -> None:
    module = make(name, pattern, dropout=0.4, **options)
    if module.has_exact_gradient or options.get("memory") == 0:  # elsewhere the gradient is not the derivative
        assert_dropout(module, 90)


@pytest.mark.parametrize(("name", "pattern"), [("mca", "CS"), ("mca", "CC"), ("luong", "CS")])
def test_dropout_of_weights(name: str, pattern: str) -> None:
    assert_dropout(make(name, pattern, dropout=0.4), 30)
