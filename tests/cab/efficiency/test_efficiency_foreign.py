"""Modules of other packages are measured under the names of `cab verify`."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from cab import Pattern, UserError
from cab.cli.main import main
from cab.efficiency.subjects import ForeignSubject, parse_subject, select_attentions

FUNCTION = """
from torch.nn import functional as F

def plain(q, k, v, causal):
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)
"""
SIZES = ["--embed-dim", "8", "--num-heads", "2", "--batch-size", "1", "--device", "cpu"]


def test_a_function_of_a_file_is_measured_beside_attentions(tmp_path: Path) -> None:
    file, out = tmp_path / "other.py", tmp_path / "costs.csv"
    file.write_text(FUNCTION)
    name = f"{file}:plain"
    plan = ["--lengths", "16", "--repeats", "1", "--pattern", "CS", "--no-verify", "--out", str(out)]
    assert main(["efficiency", name, "linear", *SIZES, *plan]) == 0
    costs = pd.read_csv(out).set_index("attention")
    assert set(costs.index) == {"projections", "vanilla", "eager", name, "linear"}
    assert (costs["status"] == "ok").all()
    assert costs.loc[name, "seconds"] > 0


def test_names_with_options_and_registered_names_stay_what_they_are() -> None:
    for text in ("local:window_size=4", "vanilla"):
        assert not isinstance(parse_subject(text), ForeignSubject)


def test_a_model_that_transformers_does_not_have() -> None:
    pytest.importorskip("transformers")
    with pytest.raises(UserError, match="unknown Hugging Face model type 'mamba9'"):
        parse_subject("hf:mamba9")
    with pytest.raises(UserError, match=r"'hf:gpt2' does not support pattern NS \(supported: CS\)"):
        select_attentions(["hf:gpt2"], [Pattern.NS])
