"""Attentions with options: the fast form is the readable one, padding has no effect, decoding is the parallel form.

:mod:`tests.attentions.test_attentions_conformance` runs these checks with default options.
"""

import re
from itertools import product
from typing import Any, get_args

import pytest
import torch
import yaml

from attentions import s4d, scatterbrain
from attentions.kernels import chunks
from attentions.synthesizer import Variant
from cab import LayerPosition
from cab.registry.registries import ATTENTIONS
from tests.helpers.attentions import agreement
from tests.helpers.attentions.trust import slow_unless_new

OPTIONS = """
abc: num_landmarks=3
adaptive_span CS: max_span=9 ramp=4 position=none; max_span=30 ramp=4 include_self=false
adaptive_span NS: max_span=20 ramp=4
axial: width=6 spread=merged; width=6
axial NS: width=0
based: feature_dim=4; feature_dim=1
bigbird: block_size=3 num_random=2; block_size=2 num_random=0 num_window=5
cluster_former: num_clusters=4 chunk_size=7; num_clusters=3 chunk_size=1
compressive: segment=6 memory=5 compressed=4 factor=3; segment=4 memory=3 compressed=9 factor=2 position=none
cosformer: default; kernel=leaky_relu; reweighting_length=9 kernel=elu1
deltanet: short_convolution=0; short_convolution=3 negative_eigenvalues=true
comba: short_convolution=0; short_convolution=3 correction=0.02
deltaproduct: short_convolution=0 num_factors=1; num_factors=3 negative_eigenvalues=false
diag_attention: block_size=4; block_size=4 weights=rela; block_size=5 weights=rela positions=lrpe
differential: layer=2
dpfp: nu=3
dsa: top_k=4 index_heads=3 index_dim=6
dsa NS: scorer=msa top_k=4 num_kv_heads=1 positions=rope
dsa CC: scorer=qsa top_k=4; scorer=keys top_k=4
dsa CS: block_size=3 top_k=2 local_blocks=1 positions=rope qk_norm=true
dsa CS: scorer=msa block_size=3 top_k=2 num_kv_heads=1 positions=rope qk_norm=true
dsa CS: scorer=qsa block_size=3 top_k=2 positions=rope output_gate=true; scorer=qsa block_size=4 top_k=2 local_blocks=2
dsa CS: scorer=keys block_size=3 top_k=2 num_kv_heads=1
eager: sink=learned; qk_norm=true output_gate=true
efficient: default
etc: radius=6 num_globals=5 max_distance=3; radius=2 num_globals=0; radius=3
flash_gau: query_key_dim=6 group_size=4
flash_quad: query_key_dim=6 scale_length=9
forgetting: default
funnel: factor=3; factor=5 position=none
gated_deltanet: short_convolution=3 negative_eigenvalues=true
gated_deltanet_2: short_convolution=3 negative_eigenvalues=true
gla: short_convolution=3 gate_rank=2
hgrn2: short_convolution=3; layer=2
image_local: block=8; block=1
kda: short_convolution=0; decay=bounded; short_convolution=3 negative_eigenvalues=true
lara: num_landmarks=4
lightning: layer=2; variant=repository layer=1
linear: default; kernel=relu; kernel=leaky_relu; kernel=identity
linformer: num_landmarks=5 max_length=80
local: default; window_size=1; window_size=5 extent=per_side; window_size=90
logsparse: local=3 kernel_size=2; local=4 restart=9 kernel_size=3; restart=1
longformer: window=5 num_globals=3; window=3 dilation=2 num_globals=0
longformer NS: window=2 dilation=3 num_globals=2 share_global=true
longshort CS: window_size=6 chunk_size=4; window_size=3 chunk_size=7; window_size=1 chunk_size=1
longshort CS: window_size=5 chunk_size=90
longshort NS: num_landmarks=1 window_size=1; num_landmarks=5 window_size=4 conv_kernel_size=3; window_size=70
luna: num_landmarks=4
luong: score=dot; score=concat; score=concat scaled=true
mamba3: state_size=4; state_size=9
mca: factor=1; factor=5 reduction=mean
mla: rotary_dim=6 kv_rank=5; output_gate=true; top_k=4 query_rank=5
moba: block_size=3 top_k=2
norm_attention: kernel=elu positions=lrpe; kernel=identity norm=layer
nsa: block_size=4 num_blocks=3 window_size=3 compress_size=4 compress_stride=2
nsa: num_blocks=4 window_size=1 compress_size=2 compress_stride=1 block_size=2 num_kv_heads=3
nsa: num_blocks=3 window_size=5 compress_size=2 compress_stride=1 block_size=4 compression=mean separate_kv=false \
output_gate=true
nystromformer: num_landmarks=4; num_landmarks=5 conv_kernel_size=3 logit_scale=linear
performer: num_features=5
performer NS,NC,CC: denominator_floor=0.1
poolingformer: window=3 pooled_window=9; window=0 pooled_window=4; window=4 pooled_window=0
reformer: num_buckets=4 chunk_size=3 rounds=3; num_buckets=2 chunk_size=40
reformer NS: num_buckets=6 chunk_size=7 key_norm=unit; num_buckets=6 chunk_size=2 keys=buckets
rfa: num_features=5
routing: num_clusters=4 window=8; num_clusters=3 window=90 local_heads=false
routing NS: num_clusters=3 normalize=false
rwkv6: layer=1 mix_rank=2 decay_rank=3
rwkv7: layer=1 decay_rank=2 rate_rank=3 gate_rank=30
s4: state_size=6
s4d: state_size=6; channels=3
s4d NS: bidirectional=false
scatterbrain: window=3 num_features=6; window=0 num_features=2; window=70
set_transformer: num_inducing=3; num_inducing=3 feedforward=false
sigmoid: output_gate=true
sinkhorn: block_size=5; block_size=8 iterations=2 temperature=2.0
skyformer: num_landmarks=5
soft: num_landmarks=4 conv_kernel_size=3
sparse_transformer: layout=strided stride=7 summary=2 spread=merged; layout=strided stride=7 summary=2 spread=heads
sparse_transformer: layout=fixed stride=7 summary=2 spread=merged; layout=fixed stride=7 summary=2 spread=heads
sparse_transformer NS: layout=strided stride=0
ssd: short_convolution=0; short_convolution=3 state_size=3
transformer_xl: segment=7 memory=5; segment=4 memory=9
transformer_xl CS: segment=6 memory=0 position=none; segment=1 memory=3
transnormer_t1: layer=0 block_size=4 positions=lrpe; layer=2
transnormer_t2: layer=0 block_size=4; layer=2 positions=lrpe
vanilla: num_kv_heads=1; sink=one; sink=learned num_kv_heads=1; qk_norm=true; output_gate=true
vanilla: qk_norm=true output_gate=true sink=learned num_kv_heads=1
vanilla,eager,flash NS,CS: positions=rope; positions=alibi; positions=alibi sink=learned
vanilla,eager,flash NS,CS: positions=rope num_kv_heads=1 qk_norm=true output_gate=true short_convolution=3
vanilla,eager,flash CS: positions=rope window=5 sink_tokens=2 short_convolution=2; window=1; window=7 num_kv_heads=1
vanilla,eager,flash CS: positions=alibi window=4 sink_tokens=3 sink=one
yoso: num_hashes=5
"""
"""Attentions, patterns if not all, and sets of options; a layer is one of three."""


def options_of(text: str) -> dict[str, Any]:
    options = {name: yaml.safe_load(value) for name, value in re.findall(r"(\w+)=(\S+)", text)}
    return {"layer_position": LayerPosition(options.pop("layer"), 3), **options} if "layer" in options else options


def cases() -> list[Any]:
    params = []
    for row in [*OPTIONS.strip().splitlines(), *(f"synthesizer: variant={x} max_length=80" for x in get_args(Variant))]:
        key, _, texts = row.partition(": ")
        names, _, patterns = key.partition(" ")
        for name, one in product(names.split(","), map(options_of, texts.split("; "))):
            values, marks = "-".join(map(str, one.values())), slow_unless_new(name)
            allowed = [str(p) for p in ATTENTIONS.get(name).patterns if not patterns or str(p) in patterns]
            params += [pytest.param(name, p, one, id=f"{name}-{p}-{values}", marks=marks) for p in allowed]
    return params


CASES = cases()
WITHOUT_OWN_TOKEN = ("diag_attention", "transnormer_t1", "transnormer_t2", "mca")
"""Attentions whose output can be independent of its own token: clamped weights, groups that have not ended."""
WITH_BLOCKS = ("local", "longshort", "logsparse", "longformer", "scatterbrain", "sinkhorn", "transformer_xl", "routing")
DROPOUT = {"axial", "bigbird", "etc", "funnel", "local", "longformer", "longshort", "luong", "mca", "reformer"} | {
    *("image_local", "cluster_former", "poolingformer", "routing", "scatterbrain", "sinkhorn", "sparse_transformer"),
    *("logsparse", "adaptive_span", "diag_attention", "s4d"),
}


@pytest.fixture(autouse=True)
def _in_small_pieces(monkeypatch):
    monkeypatch.setattr(chunks, "CPU_TOKENS", 1)
    monkeypatch.setattr(chunks, "MULTIPLE", 8)  # tokens at once
    monkeypatch.setattr(chunks, "CPU_WEIGHTS", 1)  # several blocks of targets
    monkeypatch.setattr(chunks, "CPU_ELEMENTS", 2**13)  # a few queries at a time
    monkeypatch.setattr(scatterbrain, "CPU_BLOCK", 4)
    monkeypatch.setattr(s4d, "CPU_LIMIT", 1)  # a block at a time


@pytest.mark.parametrize(("name", "pattern", "options"), CASES)
def test_options(name, pattern, options, monkeypatch):
    """Windows, buckets and segments: over several of them, within one, and over borders of pieces of few tokens."""
    module = agreement.make(name, pattern, **options).eval()
    for parameter in (p for own, p in module.named_parameters() if own == "position_bias"):
        torch.nn.init.ones_(parameter)  # every pair has a weight
    length = 70 if name in WITH_BLOCKS else 29
    agreement.assert_forms_agree(module, length, length if name in WITH_BLOCKS else 23)
    agreement.assert_forms_agree(module, 1, 1, masked=False)
    for cuts in ({"cpu"}, set()):  # a GPU masks padding instead of cutting it off
        monkeypatch.setattr(chunks, "CUTS_PADDING", cuts)
        agreement.assert_padding_is_nothing(module, 11, 17)
    if pattern == "CS" and name not in WITHOUT_OWN_TOKEN and options.get("include_self", True):
        agreement.assert_causal(module, 9)
    if module.pattern.is_causal:
        agreement.assert_decodes(module, 75, 13, (60, 6, 1))  # beyond the 64 recent keys of a cache


@pytest.mark.parametrize(("name", "pattern", "options"), [case for case in CASES if case.values[0] in DROPOUT])
def test_dropout(name, pattern, options):
    agreement.assert_dropout(agreement.make(name, pattern, dropout=0.4, **options), 40)


UNUSED = re.compile(r"``dropout``\s+(is\s+not\s+used|is\s+ignored|has\s+no\s+effect)")
WITHOUT_WEIGHTS = {"fnet", "none", "transnormer_t1", "transnormer_t2"}
"""Attentions without weights, at least in the last layer, and without a sentence about it."""
NAMES = [pytest.param(entry.name, marks=slow_unless_new(entry.name)) for entry in ATTENTIONS if entry.name != "flash"]
"""All but flash attention, which has no dropout on a CPU."""


@pytest.mark.parametrize("name", NAMES)
def test_dropout_changes_outputs_or_is_documented_not_to(name):
    entry = ATTENTIONS.get(name)
    is_unused = name in WITHOUT_WEIGHTS or any(UNUSED.search(cls.__doc__ or "") for cls in entry.cls.__mro__)
    for pattern in map(str, entry.patterns):
        outputs = []
        for dropout in (0.0, 0.4):
            torch.manual_seed(1)
            module = agreement.make(name, pattern, dropout=dropout).train()
            parts = 3 if module.pattern.is_cross else 1
            outputs.append(module(*[torch.randn(2, 20, agreement.WIDTH, dtype=torch.float64) for _ in range(parts)]))
        assert torch.equal(*outputs) == is_unused, f"{pattern}: the docstring says whether ``dropout`` is not used"
