"""Attentions released with CAB: Shark-NLP/CAB 0e49696, ``python -m tools.golden cab_release FOLDER``.

FOLDER is the folder ``efficient-attention`` of the checkout. Options are those of the released code where it differs
from the papers' text.
"""

from __future__ import annotations

import importlib
import sys
from types import SimpleNamespace
from typing import Any

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
    module, _, cls = place.partition(".")
    found = getattr(importlib.import_module(f"efficient_attention.modules.{module}"), cls)
    return found(**{"embed_dim": 16, "num_heads": 2} | options).eval()


def save(recorder: Recorder, file: str, place: str, public: Any, length: int, **options: Any) -> None:
    """Save a module that is called with one source for keys and values, or with the input alone."""
    lengths = (7, length) if recorder.about["pattern"] in ("NC", "CC") else (length,)
    recorder.save(file, SOURCE + place, projected(lambda *x: public(*x, batch_first=True)), *lengths, **options)


def record(file: str, pattern: str, place: str, names: str = LINEARS, theirs: Any = None, **ours: Any) -> None:
    """Record a class of the release, whose width is 16 and which has two heads, with other options than ours."""
    public = build(place, **(theirs or {}))
    recorder = Recorder(file.partition("_")[0], pattern, **ours).copy(public, names)
    save(recorder, file, place, public, 13, faint=None if "cosformer" in place else 3)


def make_vanilla() -> None:
    """Softmax attention by its three kernels."""
    for pattern in ("NS", "CS", "NC", "CC"):
        public = build("multihead_attention.MultiheadAttention")
        recorder = Recorder("vanilla", pattern).copy(public, LINEARS)

        def attend(*x: Tensor, public: Any = public, causal: bool = pattern == "CS", **first: bool) -> Any:
            later = torch.full((x[0].shape[1],) * 2, -torch.inf).triu(1) if causal else None
            return public(*x, attn_mask=later, **first)

        for name in ("vanilla", *(("eager", "flash") if pattern == "CS" else ())):
            recorder.about["attention"] = name
            file = f"vanilla_{pattern.lower()}" if name == "vanilla" else name
            save(recorder, file, "multihead_attention.MultiheadAttention", attend, 9)


def make_landmarks() -> None:
    for pattern in ("NS", "NC", "CC"):
        theirs = {"num_landmarks": 4, "cross": pattern != "NS"}
        names = LINEARS + " compress_k compress_v"
        record(f"abc_{pattern.lower()}", pattern, "abc.ABC", names, theirs, num_landmarks=4)
    record("lara", "NS", "lara.Lara", theirs={"num_landmarks": 5}, num_landmarks=5)
    for file, conv in (("longshort", {}), ("longshort_conv", {"conv_kernel_size": 3})):
        recorder = Recorder("longshort", "NS", window_size=5, num_landmarks=3, **conv)
        public = build("transformer_ls.AttentionLS", num_landmarks=3, window_size=5, **conv)
        recorder.copy(public, "q_proj=W_q k_proj=W_k v_proj=W_v out_proj=W_o score=dconv_fc")
        recorder.copy(public, "token_norm=dual_ln_l slot_norm=dual_ln_s")
        if conv:
            weight = recorder.ours.conv.weight.view_as(public.conv.weight)
            public.conv.forward = lambda x, weight=weight: F.conv2d(x, weight, padding=(1, 0), groups=2)
        run = lambda x, public=public: public(x, batch_first=True)  # noqa: E731
        reason = "its one-dimensional convolution, which torch refuses for this input, by conv2d" if conv else ""
        recorder.save(file, SOURCE + "transformer_ls.AttentionLS", run, 15, reason=reason)
    recorder = Recorder("nystromformer", "NS", 16, 1, num_landmarks=5, conv_kernel_size=3, logit_scale="linear")
    place = "nystrom_attention.NystromAttention"
    public = build(place, num_heads=1, num_landmarks=5, conv_kernel_size=3)
    recorder.copy(public, LINEARS)
    public.conv.load_state_dict(recorder.ours.conv.state_dict())
    reason = "one row and one head: its iteration starts from the largest column sum of the whole batch"
    save(recorder, "nystromformer", place, public, 13, batch=1, reason=reason)


def make_cosformer() -> None:
    for pattern in ("NS", "NC"):
        cross = {"cross": pattern == "NC"}
        record(f"cosformer_{pattern.lower()}", pattern, "cosformer.CosformerAttention", theirs=cross)


def make_local() -> None:
    for pattern in ("NS", "CS"):
        theirs, options = {"wsize": 3, "causal": pattern == "CS"}, {"window_size": 3, "extent": "per_side"}
        record(f"local_{pattern.lower()}", pattern, "local_attention.LocalAttention", theirs=theirs, **options)


def make_s4d() -> None:
    for file, both in (("s4d_ns", True), ("s4d_cs", False), ("s4d_ns_one_way", False), ("s4d_cs_both_ways", True)):
        pattern = file[4:6].upper()
        public = build("s4d.S4D", embed_dim=8, d_state=8, bidirectional=both and pattern == "NS")
        recorder = Recorder("s4d", pattern, 8, 2, state_size=8, bidirectional=both)
        recorder.copy(public.kernel.kernel, "log_decay=log_w_real frequency=w_imag log_dt readout=C")
        recorder.copy(public, "skip=D out_proj=output_linear")
        run = lambda x, public=public: public(x, batch_first=True)  # noqa: E731
        recorder.save(file, SOURCE + "s4d.S4D", run, 17)


def make_probsparse() -> None:
    recorder = Recorder("probsparse", "NS", factor=2, mean_over="length", sampled="per_query", mix=False)
    public = build("probsparse.ProbSparse", factor=2, dropout=0.0)
    recorder.copy(public, "q_proj=query_projection k_proj=key_projection")
    recorder.copy(public, "v_proj=value_projection out_proj=out_projection")
    drawn: list[Tensor] = []
    randint = torch.randint

    def remembered(*arguments: Any, **options: Any) -> Tensor:
        drawn.append(randint(*arguments, **options))
        return drawn[-1]

    def run(x: Tensor) -> Any:
        return public(x, batch_first=True)

    [x] = recorder.inputs(17)
    torch.randint = remembered  # type: ignore[assignment]
    run(x)
    torch.randint = lambda *_, **__: drawn[0]  # type: ignore[assignment]
    try:
        noise = {"sample": drawn[0].unsqueeze(0).expand(2, -1, -1)}
        recorder.save("probsparse", SOURCE + "probsparse.ProbSparse", run, 17, noise=noise)
    finally:
        torch.randint = randint


def make_performer() -> None:
    for pattern in ("NS", "NC"):
        public = build("performer.Performer", approx_attn_dim=6)
        recorder = Recorder("performer", pattern, num_features=6, denominator_floor=0.1).copy(public, LINEARS)
        public.eval_proj = recorder.ours.weights
        save(recorder, f"performer_{pattern.lower()}", "performer.Performer", public, 13)
