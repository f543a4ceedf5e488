"""Options that an attention refuses: the message names the option, and its value or the pattern."""

from __future__ import annotations

from typing import Any

import pytest

from cab import UserError
from tests.helpers.attentions import agreement

WRONG: dict[tuple[str, str], list[dict[str, Any]]] = {  # of limits that types state, one option of each type
    ("adaptive_span", "CS"): [{"max_span": 16}],
    ("axial", "CS"): [{"width": 0}],
    ("bigbird", "NS"): [{"num_window": 2}],
    ("cosformer", "NS"): [{"kernel": "tanh"}],
    ("dpfp", "NS"): [{"nu": 0}],
    ("etc", "NS"): [{"radius": -1}],
    ("gla", "CS"): [{"short_convolution": 1}],
    ("linformer", "NS"): [{"max_length": 0}],
    ("logsparse", "CS"): [{"restart": 2, "local": 3}],
    ("longshort", "CS"): [{"chunk_size": 0}, {"num_landmarks": 16}, {"conv_kernel_size": 5}],
    ("longshort", "NS"): [{"window_size": 0}, {"num_landmarks": 0}, {"conv_kernel_size": 4}, {"chunk_size": 8}],
    ("nsa", "CS"): [{"num_blocks": 2}, {"num_kv_heads": 2}, {"compress_size": 24}, {"compress_size": 128}],
    ("nystromformer", "NS"): [{"conv_kernel_size": 4}],
    ("performer", "CS"): [{"denominator_floor": -0.1}, {"denominator_floor": 0.1}],
    ("poolingformer", "NS"): [{"pooled_window": 2}],
    ("reformer", "NS"): [{"num_buckets": 5}, {"keys": "all"}],
    ("skyformer", "NS"): [{"num_landmarks": 1}],
    ("soft", "NS"): [{"conv_kernel_size": 4}],
    ("sparse_transformer", "CS"): [{"stride": 0}, {"stride": 4, "summary": 5}],
    ("vanilla", "CS"): [{"num_kv_heads": 2}, {"num_kv_heads": 0}, {"window": 0}, {"sink_tokens": 2}],
    ("vanilla", "NS"): [{"window": 4}, {"sink_tokens": 2}, {"positions": "learned"}],
    ("vanilla", "NC"): [{"positions": "rope"}, {"positions": "alibi"}, {"window": 4}, {"short_convolution": 4}],
    ("vanilla", "CC"): [{"positions": "rope"}, {"positions": "alibi"}, {"window": 4}, {"short_convolution": 4}],
    ("yoso", "NS"): [{"hash_length": 0}, {"hash_length": 17}],
}
CASES = [(*pair, options) for pair, wrong in WRONG.items() for options in wrong]


@pytest.mark.parametrize(("name", "pattern", "options"), CASES)
def test_wrong_options_are_refused(name: str, pattern: str, options: dict[str, Any]) -> None:
    with pytest.raises(UserError) as error:
        agreement.make(name, pattern, **options)
    option, value = next(iter(options.items()))
    assert option in str(error.value)
    assert str(value) in str(error.value) or pattern in str(error.value)
