"""Outputs of CAB's released classes (``efficient_attention.modules``), their weights ported, in float64.

A file holds our state_dict (``state.*``), inputs, the released class's output in evaluation, and the keys that
ProbSparse sampled. The options are those that preset `paper` runs, but for sizes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cab import build_attention
from cab.registry.tables import tuned_options

FILES = Path(__file__).parent / "cab"

EXACT = 1e-6  # relative, in norm; parts of cosFormer, LongShort and S4D stay in float32 in the released code
CASES: list[tuple[str, str, str, str, dict[str, Any], float]] = [
    ("abc_ns", "NS", "tts", "fastspeech2", {"num_landmarks": 4}, EXACT),
    ("abc_nc", "NC", "lstf", "informer", {"num_landmarks": 4}, EXACT),
    ("abc_cc", "CC", "tts", "transformer_tts", {"num_landmarks": 4}, EXACT),
    ("lara", "NS", "tts", "fastspeech2", {"num_landmarks": 5}, EXACT),
    ("cosformer_ns", "NS", "tts", "fastspeech2", {}, EXACT),
    ("cosformer_nc", "NC", "lstf", "informer", {}, EXACT),
    ("longshort", "NS", "tts", "fastspeech2", {"window_size": 5, "num_landmarks": 3, "conv_kernel_size": 3}, EXACT),
    # The iteration for its inverse has not converged after the published six, and starts elsewhere: of the largest
    # column sum of a whole batch there, of each matrix here.
    ("nystromformer", "NS", "tts", "fastspeech2", {"num_landmarks": 5, "conv_kernel_size": 3}, 1e-3),
    ("local_ns", "NS", "tts", "fastspeech2", {"window_size": 3}, EXACT),
    ("local_cs", "CS", "tts", "transformer_tts", {"window_size": 4}, EXACT),
    ("s4d_ns", "NS", "tts", "fastspeech2", {"state_size": 8}, EXACT),
    ("s4d_cs", "CS", "tts", "transformer_tts", {"state_size": 8}, EXACT),
    ("probsparse", "NS", "tts", "fastspeech2", {"factor": 2}, EXACT),
]


def difference(name: str, pattern: str, options: dict[str, Any]) -> float:
    with np.load(FILES / f"{name}.npz") as file:
        arrays = {key: torch.from_numpy(file[key]) for key in file.files}
    inputs = [x.double() for key, x in sorted(arrays.items()) if key.startswith("input.")]
    module = build_attention(name.partition("_")[0], pattern=pattern, embed_dim=8, num_heads=2, **options)
    state = {key.removeprefix("state."): x for key, x in arrays.items() if key.startswith("state.")}
    module.double().load_state_dict(state)
    if "sample" in arrays:
        keys = arrays["sample"].expand(len(inputs[0]), -1, -1)
        module.sample_noise = lambda *_: {"sample": keys}  # type: ignore[method-assign]
    output = module.eval()(*inputs, *inputs[1:])
    return ((output - arrays["output"]).norm() / arrays["output"].norm()).item()


@pytest.mark.parametrize(("name", "pattern", "task", "backbone", "sizes", "tolerance"), CASES, ids=lambda x: str(x))
def test_outputs_are_the_released_ones(
    name: str, pattern: str, task: str, backbone: str, sizes: dict[str, Any], tolerance: float
) -> None:
    options = tuned_options(task, backbone, pattern, name.partition("_")[0]) | sizes
    assert difference(name, pattern, options) < tolerance


@pytest.mark.parametrize(("task", "backbone"), [("sum", "transformer"), ("sr", "sr3"), ("mlm", "roberta")])
@pytest.mark.parametrize(
    ("name", "sizes", "tolerance"),
    [("nystromformer", {"num_landmarks": 5, "conv_kernel_size": 3}, 1e-3), ("probsparse", {"factor": 2}, EXACT)],
    ids=["nystromformer", "probsparse"],
)
def test_every_task_runs_the_released_form(
    task: str, backbone: str, name: str, sizes: dict[str, Any], tolerance: float
) -> None:
    assert difference(name, "NS", tuned_options(task, backbone, "NS", name) | sizes) < tolerance
