"""Attentions released with CAB: Shark-NLP/CAB 0e49696, ``python -m tools.golden cab_release FOLDER``.

FOLDER is the folder ``efficient-attention`` of the checkout. Options are those of the released code where it differs
from the papers' text.
"""

from __future__ import annotations

import sys
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional as F

from tools.golden.record import Recorder, projected

LINEARS = "q_proj k_proj v_proj out_proj"
SOURCE = "Shark-NLP/CAB 0e49696, efficient_attention.modules."


def patch() -> None:
    """Put torch's einsum in place of a package for contractions that is not installed."""

    def contract(equation: str, *tensors: Tensor) -> Tensor:
        dtype = torch.complex128 if any(x.is_complex() for x in tensors) else torch.float64
        return torch.einsum(equation, *(x.to(dtype) for x in tensors))

    sys.modules["opt_einsum"] = SimpleNamespace(contract=contract, contract_expression=None)  # type: ignore[assignment]


def build(place: str, **options: Any) -> Any:
    found = resolve_name(f"efficient_attention.modules.{place}")
    return found(**{"embed_dim": 16, "num_heads": 2} | options).eval()


def save(recorder: Recorder, case: str, place: str, public: Any, length: int, **options: Any) -> None:
    """Save a module that is called with one source for keys and values, or with the input alone."""
    lengths = (7, length) if recorder.about["pattern"] in ("NC", "CC") else (length,)
    run = projected(lambda *x: public(*x, batch_first=True))
    recorder.save(SOURCE + place, run, *lengths, case=case, **options)


LOCAL = {"window_size": 3, "extent": "per_side"}
RELEASED: tuple[tuple[str, str, str, dict[str, Any], dict[str, Any]], ...] = (
    ("abc_ns", "abc.ABC", " compress_k compress_v", {"num_landmarks": 4, "cross": False}, {"num_landmarks": 4}),
    ("abc_nc", "abc.ABC", " compress_k compress_v", {"num_landmarks": 4, "cross": True}, {"num_landmarks": 4}),
    ("abc_cc", "abc.ABC", " compress_k compress_v", {"num_landmarks": 4, "cross": True}, {"num_landmarks": 4}),
    ("lara", "lara.Lara", "", {"num_landmarks": 5}, {"num_landmarks": 5}),
    ("cosformer_ns", "cosformer.CosformerAttention", "", {"cross": False}, {}),
    ("cosformer_nc", "cosformer.CosformerAttention", "", {"cross": True}, {}),
    ("local_ns", "local_attention.LocalAttention", "", {"wsize": 3, "causal": False}, LOCAL),
    ("local_cs", "local_attention.LocalAttention", "", {"wsize": 3, "causal": True}, LOCAL),
)
"""Case, class, further parameters, its options and ours."""


def make_released() -> None:
    for case, place, names, theirs, ours in RELEASED:
        name, _, pattern = case.partition("_")
        public = build(place, **theirs)
        recorder = Recorder(name, pattern.upper() or "NS", **ours).copy(public, LINEARS + names)
        save(recorder, case, place, public, 13, faint=None if name == "cosformer" else 3)


def make_vanilla() -> None:
    """Softmax attention by its three kernels."""
    place = "multihead_attention.MultiheadAttention"
    for pattern in ("NS", "CS", "NC", "CC"):
        public = build(place)
        recorder = Recorder("vanilla", pattern).copy(public, LINEARS)

        def attend(*x: Tensor, public: Any = public, causal: bool = pattern == "CS", **first: bool) -> Any:
            later = torch.full((x[0].shape[1],) * 2, -torch.inf).triu(1) if causal else None
            return public(*x, attn_mask=later, **first)

        for name in ("vanilla", "eager", "flash") if pattern == "CS" else ("vanilla",):
            recorder.about["attention"] = name
            save(recorder, f"vanilla_{pattern.lower()}" if name == "vanilla" else name, place, attend, 9)


def make_longshort() -> None:
    for case, conv in (("longshort", {}), ("longshort_conv", {"conv_kernel_size": 3})):
        recorder = Recorder("longshort", "NS", window_size=5, num_landmarks=3, **conv)
        public = build("transformer_ls.AttentionLS", num_landmarks=3, window_size=5, **conv)
        recorder.copy(public, "q_proj=W_q k_proj=W_k v_proj=W_v out_proj=W_o score=dconv_fc")
        recorder.copy(public, "token_norm=dual_ln_l slot_norm=dual_ln_s")
        if conv:
            weight = recorder.ours.conv.weight.view_as(public.conv.weight)
            public.conv.forward = lambda x, weight=weight: F.conv2d(x, weight, padding=(1, 0), groups=2)
        reason = "its one-dimensional convolution, which torch refuses for this input, by conv2d" if conv else ""
        save(recorder, case, "transformer_ls.AttentionLS", public, 15, reason=reason)


def make_nystromformer() -> None:
    recorder = Recorder("nystromformer", "NS", 16, 1, num_landmarks=5, conv_kernel_size=3, logit_scale="linear")
    place = "nystrom_attention.NystromAttention"
    public = build(place, num_heads=1, num_landmarks=5, conv_kernel_size=3)
    recorder.copy(public, LINEARS + " conv")
    reason = "one row and one head: its iteration starts from the largest column sum of the whole batch"
    save(recorder, "nystromformer", place, public, 13, batch=1, reason=reason)


def make_s4d() -> None:
    for case, both in (("s4d_ns", True), ("s4d_cs", False), ("s4d_ns_one_way", False), ("s4d_cs_both_ways", True)):
        pattern = case[4:6].upper()
        public = build("s4d.S4D", embed_dim=8, d_state=8, bidirectional=both and pattern == "NS")
        recorder = Recorder("s4d", pattern, 8, 2, state_size=8, bidirectional=both)
        recorder.copy(public.kernel.kernel, "log_decay=log_w_real frequency=w_imag log_dt readout=C")
        recorder.copy(public, "skip=D out_proj=output_linear")
        save(recorder, case, "s4d.S4D", public, 17)


def make_probsparse() -> None:
    recorder = Recorder("probsparse", "NS", factor=2, mean_over="length", sampled="per_query", mix=False)
    public = build("probsparse.ProbSparse", factor=2, dropout=0.0)
    recorder.copy(public, "q_proj=query_projection k_proj=key_projection")
    recorder.copy(public, "v_proj=value_projection out_proj=out_projection")
    noise, randint = dict[str, Tensor](), torch.randint

    def remembered(*arguments: Any, **options: Any) -> Tensor:
        sample = randint(*arguments, **options)
        noise["sample"] = sample.unsqueeze(0).expand(2, -1, -1)
        return sample

    with mock.patch.object(torch, "randint", remembered):
        save(recorder, "probsparse", "probsparse.ProbSparse", public, 17, noise=noise)


def make_performer() -> None:
    for pattern in ("NS", "NC"):
        public = build("performer.Performer", approx_attn_dim=6)
        recorder = Recorder("performer", pattern, num_features=6, denominator_floor=0.1).copy(public, LINEARS)
        public.eval_proj = recorder.ours.weights
        save(recorder, f"performer_{pattern.lower()}", "performer.Performer", public, 13)
