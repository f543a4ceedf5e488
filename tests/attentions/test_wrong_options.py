"""Options that an attention refuses: the message names the option, and its value or the pattern."""

from __future__ import annotations

from typing import Any

import pytest

from cab import UserError
from tests.attentions import agreement

WRONG: dict[tuple[str, str], list[dict[str, Any]]] = {
    ("adaptive_span", "CS"): [{"max_span": 16}, {"init_span": 2.0}, {"position": "fixed"}],
    ("axial", "CS"): [{"width": 0}, {"spread": "layers"}],
    ("based", "NS"): [{"feature_dim": 0}],
    ("bigbird", "NS"): [{"block_size": 0}, {"num_window": 2}],
    ("cluster_former", "NS"): [{"chunk_size": 0}, {"decay": -0.5}],
    ("compressive", "CS"): [{"factor": 0}, {"position": "absolute"}],
    ("cosformer", "CS"): [{"reweighting_length": 0}],
    ("cosformer", "NS"): [{"kernel": "tanh"}],
    ("diag_attention", "CS"): [{"block_size": 0}, {"weights": "relu"}],
    ("dpfp", "NS"): [{"nu": 0}, {"update": "product"}, {"update": "delta"}],
    ("etc", "NS"): [{"radius": -1}],
    ("flash_gau", "NS"): [{"group_size": 0}],
    ("flash_quad", "NS"): [{"query_key_dim": 0}, {"scale_length": 0}],
    ("flowformer", "NS"): [{"competition_clamp": 0.0}],
    ("fnet", "NS"): [{"norm": "forward"}],
    ("funnel", "NC"): [{"factor": 0}, {"position": "absolute"}],
    ("gated_deltanet", "CS"): [{"value_expansion": 0.0}],
    ("gla", "CS"): [{"key_expansion": -1.0}, {"gate_rank": 0}, {"gate_temperature": 0.0}],
    ("image_local", "CS"): [{"block": 0}, {"memory": -1}],
    ("lara", "NS"): [{"num_landmarks": 0}],
    ("lightning", "CS"): [{"variant": "other"}],
    ("linear", "NS"): [{"kernel": "tanh"}],
    ("linformer", "NS"): [{"num_landmarks": 0}, {"max_length": 0}, {"share": "all"}],
    ("local", "NS"): [{"window_size": 0}, {"extent": "both"}, {"window_size": -3, "extent": "per_side"}],
    ("logsparse", "CS"): [{"local": 0}, {"restart": 2, "local": 3}, {"kernel_size": 0}],
    ("longformer", "CS"): [{"dilation": 0}, {"window": -1}],
    ("longshort", "CS"): [{"chunk_rank": 0}, {"num_landmarks": 16}, {"conv_kernel_size": 5}],
    ("longshort", "NS"): [{"window_size": 0}, {"num_landmarks": 0}, {"conv_kernel_size": 4}, {"chunk_size": 8}],
    ("luna", "NS"): [{"num_landmarks": 0}],
    ("luong", "NS"): [{"score": "mlp"}],
    ("mca", "NS"): [{"factor": 0}, {"reduction": "max"}],
    ("mla", "CS"): [{"kv_rank": 0}, {"rotary_dim": 3}],
    ("moba", "CS"): [{"block_size": 0}, {"top_k": 0}],
    ("norm_attention", "CS"): [{"kernel": "gelu"}, {"norm": "batch"}, {"positions": "learned"}],
    ("nsa", "CS"): [
        {"block_size": 0},
        {"num_blocks": 2},
        {"window_size": 0},
        {"num_kv_heads": 2},
        {"compress_size": 24},
        {"compress_size": 128},
        {"compress_stride": 0},
        {"compression": "sum"},
    ],
    ("nystromformer", "NS"): [{"num_landmarks": 0}, {"conv_kernel_size": 4}, {"logit_scale": "cube"}],
    ("performer", "CS"): [{"num_features": 0}, {"denominator_floor": -0.1}, {"denominator_floor": 0.1}],
    ("poolingformer", "NS"): [{"stride": 0}, {"pooled_window": 2}, {"kernel_size": 4}, {"pooling": "max"}],
    ("reformer", "NS"): [{"num_buckets": 5}, {"num_buckets": 0}, {"rounds": 0}, {"key_norm": "none"}, {"keys": "all"}],
    ("retention", "CS"): [{"conv_size": 1}, {"value_expansion": 0.0}],
    ("rfa", "NS"): [{"num_features": 0}, {"denominator_floor": 0.0}, {"gate": True}],
    ("routing", "NS"): [{"num_clusters": 0}, {"decay": 1.5}],
    ("rwkv6", "CS"): [{"mix_rank": 0}, {"decay_rank": 0}],
    ("rwkv7", "CS"): [{"decay_rank": 0}, {"rate_rank": 0}, {"gate_rank": 0}],
    ("s4", "NS"): [{"state_size": 0}, {"state_size": 7}],
    ("s4d", "NS"): [{"state_size": 0}, {"state_size": 7}, {"channels": 0}],
    ("scatterbrain", "NS"): [{"window": -1}, {"num_features": 0}, {"num_features": 5}],
    ("set_transformer", "NS"): [{"num_inducing": 0}],
    ("sinkhorn", "NS"): [{"block_size": 0}, {"iterations": 0}, {"temperature": 0.0}],
    ("skyformer", "NS"): [{"num_landmarks": 1}, {"ridge": 0.0}],
    ("soft", "NS"): [{"num_landmarks": 0}, {"conv_kernel_size": 4}, {"ridge": 0.0}],
    ("sparse_transformer", "CS"): [{"stride": 0}, {"stride": 4, "summary": 5}, {"layout": "local"}, {"spread": "both"}],
    ("ssd", "CS"): [{"state_size": 0}],
    ("synthesizer", "NS"): [{"variant": "sparse"}, {"max_length": 0}, {"rank": 0}],
    ("transformer_xl", "CS"): [{"segment": 0}, {"memory": -1}, {"position": "absolute"}],
    ("transnormer_t2", "CS"): [{"positions": "rope"}],
    ("vanilla", "CS"): [{"num_kv_heads": 2}, {"num_kv_heads": 0}, {"sink": "two"}],
    ("yoso", "NS"): [{"hash_length": 0}, {"num_hashes": 0}],
    ("yoso_e", "NS"): [{"hash_length": 17}],
}
CASES = [(*pair, options) for pair, wrong in WRONG.items() for options in wrong]


@pytest.mark.parametrize(("name", "pattern", "options"), CASES)
def test_wrong_options_are_refused(name: str, pattern: str, options: dict[str, Any]) -> None:
    with pytest.raises(UserError) as error:
        agreement.make(name, pattern, **options)
    option, value = next(iter(options.items()))
    assert option in str(error.value)
    assert str(value) in str(error.value) or pattern in str(error.value)
