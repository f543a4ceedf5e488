"""Attentions released with CAB: Shark-NLP/CAB 0e49696, run as ``python -m tools.golden.make_cab CHECKOUT``.

Options are those of the released code where it differs from the papers' text.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from tools.golden.record import Recorder, in_double, put

SOURCE = "Shark-NLP/CAB 0e49696, efficient_attention.modules."


def patch() -> None:
    """Put torch's einsum in place of a package for contractions that is not installed."""

    def contract(equation: str, *tensors: Tensor) -> Tensor:
        dtype = torch.complex128 if any(x.is_complex() for x in tensors) else torch.float64
        return torch.einsum(equation, *(x.to(dtype) for x in tensors))

    sys.modules["opt_einsum"] = SimpleNamespace(contract=contract, contract_expression=None)  # type: ignore[assignment]


def public_class(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"efficient_attention.modules.{module}"), name)


def linears(recorder: Recorder, public: Any) -> None:
    recorder.linears(q_proj=public.q_proj, k_proj=public.k_proj, v_proj=public.v_proj, out_proj=public.out_proj)


def self_attention(public: Any) -> Any:
    return lambda x: public(x, x, x, batch_first=True)[0]


def make_vanilla() -> None:
    """Softmax attention by its three kernels."""
    for pattern, lengths in (("NS", (9,)), ("CS", (9,)), ("NC", (7, 9)), ("CC", (7, 9))):
        recorder = Recorder("vanilla", pattern, 16, 2)
        public = public_class("multihead_attention", "MultiheadAttention")(embed_dim=16, num_heads=2).eval()
        linears(recorder, public)

        def run(x: Tensor, source: Tensor | None = None, public: Any = public, pattern: str = pattern) -> Tensor:
            source = x if source is None else source
            later = torch.full((x.shape[1],) * 2, -torch.inf).triu(1) if pattern == "CS" else None
            return public(x, source, source, attn_mask=later, batch_first=True)[0]

        inputs = recorder.inputs(*lengths)
        source = SOURCE + "multihead_attention.MultiheadAttention"
        recorder.save(f"vanilla_{pattern.lower()}", source, run, inputs)
        if pattern == "CS":
            for name in ("eager", "flash"):
                recorder.about["attention"] = name
                recorder.save(name, source, run, inputs)


def make_abc() -> None:
    for pattern, lengths in (("NS", (13,)), ("NC", (7, 13))):
        recorder = Recorder("abc", pattern, 16, 2, num_landmarks=4)
        public = public_class("abc", "ABC")(embed_dim=16, num_heads=2, num_landmarks=4, cross=pattern == "NC").eval()
        linears(recorder, public)
        put(public.compress_k, recorder.ours.compress_k)
        put(public.compress_v, recorder.ours.compress_v)

        def run(x: Tensor, source: Tensor | None = None, public: Any = public) -> Tensor:
            source = x if source is None else source
            return public(x, source, source, batch_first=True)[0]

        recorder.save(f"abc_{pattern.lower()}", SOURCE + "abc.ABC", run, recorder.inputs(*lengths))


def make_lara() -> None:
    recorder = Recorder("lara", "NS", 16, 2, num_landmarks=5)
    public = public_class("lara", "Lara")(embed_dim=16, num_heads=2, num_landmarks=5).eval()
    linears(recorder, public)
    recorder.save("lara", SOURCE + "lara.Lara", self_attention(public), recorder.inputs(13))


def make_cosformer() -> None:
    for pattern, lengths in (("NS", (13,)), ("NC", (7, 13))):
        recorder = Recorder("cosformer", pattern, 16, 2)
        public = public_class("cosformer", "CosformerAttention")(
            embed_dim=16, num_heads=2, cross=pattern == "NC"
        ).eval()
        linears(recorder, public)

        def run(x: Tensor, source: Tensor | None = None, public: Any = public) -> Tensor:
            source = x if source is None else source
            return public(x, source, source, batch_first=True)[0]

        recorder.save(
            f"cosformer_{pattern.lower()}",
            SOURCE + "cosformer.CosformerAttention",
            run,
            recorder.inputs(*lengths, faint=None),
        )


def make_longshort() -> None:
    recorder = Recorder("longshort", "NS", 16, 2, window_size=5, num_landmarks=3)
    ours = recorder.ours
    public = public_class("transformer_ls", "AttentionLS")(
        embed_dim=16, num_heads=2, num_landmarks=3, window_size=5
    ).eval()
    recorder.linears(q_proj=public.W_q, k_proj=public.W_k, v_proj=public.W_v, out_proj=public.W_o)
    recorder.linears(score=public.dconv_fc)
    public.dual_ln_l.load_state_dict(ours.token_norm.state_dict())
    public.dual_ln_s.load_state_dict(ours.slot_norm.state_dict())
    source = SOURCE + "transformer_ls.AttentionLS"
    recorder.save("longshort", source, lambda x: public(x, batch_first=True)[0], recorder.inputs(15))


def make_nystromformer() -> None:
    recorder = Recorder("nystromformer", "NS", 16, 1, num_landmarks=5, conv_kernel_size=3, logit_scale="linear")
    public = public_class("nystrom_attention", "NystromAttention")(
        embed_dim=16, num_heads=1, num_landmarks=5, conv_kernel_size=3
    ).eval()
    linears(recorder, public)
    public.conv.load_state_dict(recorder.ours.conv.state_dict())
    recorder.save(
        "nystromformer",
        SOURCE + "nystrom_attention.NystromAttention",
        self_attention(public),
        recorder.inputs(13, batch=1),
        reason="one row and one head: its iteration starts from the largest column sum of the whole batch",
    )


def make_local() -> None:
    for pattern in ("NS", "CS"):
        recorder = Recorder("local", pattern, 16, 2, window_size=3, extent="per_side")
        public = public_class("local_attention", "LocalAttention")(
            embed_dim=16, num_heads=2, wsize=3, causal=pattern == "CS"
        ).eval()
        linears(recorder, public)
        source = SOURCE + "local_attention.LocalAttention"
        recorder.save(f"local_{pattern.lower()}", source, self_attention(public), recorder.inputs(13))


def make_s4d() -> None:
    for pattern, both in (("NS", True), ("CS", False)):
        recorder = Recorder("s4d", pattern, 8, 2, state_size=8, bidirectional=both)
        ours = recorder.ours
        public = public_class("s4d", "S4D")(embed_dim=8, d_state=8, num_heads=2, bidirectional=both).eval()
        kernel = public.kernel.kernel
        put(kernel.log_w_real, ours.log_decay)
        put(kernel.w_imag, ours.frequency)
        put(kernel.log_dt, ours.log_dt)
        put(kernel.C, ours.readout)
        put(public.D, ours.skip)
        recorder.linears(out_proj=public.output_linear)
        source = SOURCE + "s4d.S4D"
        run = lambda x, public=public: public(x, batch_first=True)[0]  # noqa: E731
        recorder.save(f"s4d_{pattern.lower()}", source, run, recorder.inputs(17))


def make_probsparse() -> None:
    recorder = Recorder("probsparse", "NS", 16, 2, factor=2, mean_over="length", sampled="per_query", mix=False)
    public = public_class("probsparse", "ProbSparse")(embed_dim=16, num_heads=2, factor=2, dropout=0.0).eval()
    recorder.linears(q_proj=public.query_projection, k_proj=public.key_projection)
    recorder.linears(v_proj=public.value_projection, out_proj=public.out_projection)
    drawn: list[Tensor] = []
    randint = torch.randint

    def remembered(*arguments: Any, **options: Any) -> Tensor:
        drawn.append(randint(*arguments, **options))
        return drawn[-1]

    torch.manual_seed(5)
    inputs = recorder.inputs(17)
    torch.randint = remembered  # type: ignore[assignment]
    public(inputs[0], batch_first=True)
    torch.randint = lambda *_, **__: drawn[0]  # type: ignore[assignment]
    try:
        recorder.save(
            "probsparse",
            SOURCE + "probsparse.ProbSparse",
            lambda x: public(x, batch_first=True)[0],
            inputs,
            noise={"sample": drawn[0].unsqueeze(0).expand(2, -1, -1)},
        )
    finally:
        torch.randint = randint


def make_performer() -> None:
    for pattern, lengths in (("NS", (13,)), ("NC", (7, 13))):
        recorder = Recorder("performer", pattern, 16, 2, num_features=6, denominator_floor=0.1)
        public = public_class("performer", "Performer")(embed_dim=16, num_heads=2, approx_attn_dim=6).eval()
        linears(recorder, public)
        public.eval_proj = recorder.ours.weights

        def run(x: Tensor, source: Tensor | None = None, public: Any = public) -> Tensor:
            source = x if source is None else source
            return public(x, source, source, batch_first=True)[0]

        recorder.save(f"performer_{pattern.lower()}", SOURCE + "performer.Performer", run, recorder.inputs(*lengths))


def main(checkout: Path) -> None:
    sys.path.insert(0, str(checkout / "efficient-attention"))
    patch()
    with in_double():
        for name, make in list(globals().items()):
            if name.startswith("make_"):
                make()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
