"""Attentions released with CAB: Shark-NLP/CAB 0e49696, run as ``python -m tools.golden.make_cab FOLDER``.

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

from tools.golden.record import Recorder, projected, record_all

LINEARS = "q_proj k_proj v_proj out_proj"
SOURCE = "Shark-NLP/CAB 0e49696, efficient_attention.modules."


def patch() -> None:
    """Put torch's einsum in place of a package for contractions that is not installed."""

    def contract(equation: str, *tensors: Tensor) -> Tensor:
        dtype = torch.complex128 if any(x.is_complex() for x in tensors) else torch.float64
        return torch.einsum(equation, *(x.to(dtype) for x in tensors))

    sys.modules["opt_einsum"] = SimpleNamespace(contract=contract, contract_expression=None)  # type: ignore[assignment]


def record(
    file: str, pattern: str, module: str, cls: str, length: int, names: str = LINEARS, theirs: Any = None, **ours: Any
) -> None:
    """Record a class of the release, whose width is 16 and which has two heads, with other options than ours."""
    recorder = Recorder(file.partition("_")[0], pattern, **ours)
    public = build(module, cls, **({} if theirs is None else theirs))
    recorder.copy(public, names)
    lengths = (7, length) if pattern in ("NC", "CC") else (length,)
    run = projected(lambda *x: public(*x, batch_first=True))
    recorder.save(file, f"{SOURCE}{module}.{cls}", run, *lengths, faint=None if cls == "CosformerAttention" else 3)


def build(module: str, cls: str, **options: Any) -> Any:
    found = getattr(importlib.import_module(f"efficient_attention.modules.{module}"), cls)
    return found(**{"embed_dim": 16, "num_heads": 2} | options).eval()


def make_vanilla() -> None:
    """Softmax attention by its three kernels."""
    for pattern, lengths in (("NS", (9,)), ("CS", (9,)), ("NC", (7, 9)), ("CC", (7, 9))):
        recorder = Recorder("vanilla", pattern)
        public = build("multihead_attention", "MultiheadAttention")
        recorder.copy(public, LINEARS)

        def attend(x: Tensor, *sources: Tensor, public: Any = public, causal: bool = pattern == "CS") -> Any:
            later = torch.full((x.shape[1],) * 2, -torch.inf).triu(1) if causal else None
            return public(x, *sources, attn_mask=later, batch_first=True)

        for name in ("vanilla", *(("eager", "flash") if pattern == "CS" else ())):
            recorder.about["attention"] = name
            file = f"vanilla_{pattern.lower()}" if name == "vanilla" else name
            recorder.save(file, SOURCE + "multihead_attention.MultiheadAttention", projected(attend), *lengths)


def make_landmarks() -> None:
    abc = LINEARS + " compress_k compress_v"
    for pattern in ("NS", "NC", "CC"):
        theirs = {"num_landmarks": 4, "cross": pattern != "NS"}
        record(f"abc_{pattern.lower()}", pattern, "abc", "ABC", 13, abc, theirs, num_landmarks=4)
    record("lara", "NS", "lara", "Lara", 13, theirs={"num_landmarks": 5}, num_landmarks=5)
    for file, conv in (("longshort", {}), ("longshort_conv", {"conv_kernel_size": 3})):
        recorder = Recorder("longshort", "NS", window_size=5, num_landmarks=3, **conv)
        public = build("transformer_ls", "AttentionLS", num_landmarks=3, window_size=5, **conv)
        recorder.copy(public, "q_proj=W_q k_proj=W_k v_proj=W_v out_proj=W_o score=dconv_fc")
        recorder.copy(public, "token_norm=dual_ln_l slot_norm=dual_ln_s")
        if conv:
            weight = recorder.ours.conv.weight.view_as(public.conv.weight)
            public.conv.forward = lambda x, weight=weight: F.conv2d(x, weight, padding=(1, 0), groups=2)
        run = lambda x, public=public: public(x, batch_first=True)  # noqa: E731
        reason = "its one-dimensional convolution, which torch refuses for this input, by conv2d" if conv else ""
        recorder.save(file, SOURCE + "transformer_ls.AttentionLS", run, 15, reason=reason)
    recorder = Recorder("nystromformer", "NS", 16, 1, num_landmarks=5, conv_kernel_size=3, logit_scale="linear")
    theirs = build("nystrom_attention", "NystromAttention", num_heads=1, num_landmarks=5, conv_kernel_size=3)
    recorder.copy(theirs, LINEARS)
    theirs.conv.load_state_dict(recorder.ours.conv.state_dict())
    run = projected(lambda *x: theirs(*x, batch_first=True))
    reason = "one row and one head: its iteration starts from the largest column sum of the whole batch"
    recorder.save("nystromformer", SOURCE + "nystrom_attention.NystromAttention", run, 13, batch=1, reason=reason)


def make_cosformer() -> None:
    for pattern in ("NS", "NC"):
        cross = {"cross": pattern == "NC"}
        record(f"cosformer_{pattern.lower()}", pattern, "cosformer", "CosformerAttention", 13, theirs=cross)


def make_local() -> None:
    for pattern in ("NS", "CS"):
        theirs = {"wsize": 3, "causal": pattern == "CS"}
        file, options = f"local_{pattern.lower()}", {"window_size": 3, "extent": "per_side"}
        record(file, pattern, "local_attention", "LocalAttention", 13, theirs=theirs, **options)


def make_s4d() -> None:
    for file, both in (("s4d_ns", True), ("s4d_cs", False), ("s4d_ns_one_way", False), ("s4d_cs_both_ways", True)):
        pattern = file[4:6].upper()
        recorder = Recorder("s4d", pattern, 8, 2, state_size=8, bidirectional=both)
        public = build("s4d", "S4D", embed_dim=8, d_state=8, bidirectional=both and pattern == "NS")
        recorder.copy(public.kernel.kernel, "log_decay=log_w_real frequency=w_imag log_dt readout=C")
        recorder.copy(public, "skip=D out_proj=output_linear")
        run = lambda x, public=public: public(x, batch_first=True)  # noqa: E731
        recorder.save(file, SOURCE + "s4d.S4D", run, 17)


def make_probsparse() -> None:
    recorder = Recorder("probsparse", "NS", factor=2, mean_over="length", sampled="per_query", mix=False)
    public = build("probsparse", "ProbSparse", factor=2, dropout=0.0)
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
    for pattern, lengths in (("NS", (13,)), ("NC", (7, 13))):
        recorder = Recorder("performer", pattern, num_features=6, denominator_floor=0.1)
        public = build("performer", "Performer", approx_attn_dim=6)
        recorder.copy(public, LINEARS)
        public.eval_proj = recorder.ours.weights
        run = projected(lambda *x, public=public: public(*x, batch_first=True))
        recorder.save(f"performer_{pattern.lower()}", SOURCE + "performer.Performer", run, *lengths)


if __name__ == "__main__":
    record_all(globals())
