"""Layers of single repositories, run as ``python -m tools.golden.make_repositories FOLDER``.

FOLDER contains a checkout per repository, named OWNER+NAME; each function names repository and commit.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tools.golden.record import Recorder, load, put, record_all


def make_flowformer(folder: Path) -> None:
    module = load(folder / "thuml+Flowformer" / "Flow_Attention.py")
    for pattern, name, lengths in (
        ("NS", "Flow_Attention", (9,)),
        ("NC", "Flow_Attention", (7, 9)),
        ("CS", "Flow_Attention_Causal", (9,)),
    ):
        recorder = Recorder("flowformer", pattern, 16, 2)
        public = getattr(module, name)(16, 16, 16, 2).eval()
        recorder.linears(
            q_proj=public.query_projection,
            k_proj=public.key_projection,
            v_proj=public.value_projection,
            out_proj=public.out_projection,
        )

        def run(x: Tensor, source: Tensor | None = None, public: Any = public) -> Tensor:
            source = x if source is None else source
            return public(x, source, source)

        file = f"flowformer_{pattern.lower()}"
        recorder.save(file, f"thuml/Flowformer 61f5d8c, {name}", run, recorder.inputs(*lengths))


def make_xcit(folder: Path) -> None:
    source = (folder / "facebookresearch+xcit" / "xcit.py").read_text()
    start = source.index("class XCA(")
    module: dict[str, Any] = {"torch": torch, "nn": nn}
    exec(source[start : source.index("\nclass ", start)], module)
    recorder = Recorder("xcit", "NS", 16, 2)
    recorder.without_biases("q_proj", "k_proj", "v_proj")
    public = module["XCA"](16, num_heads=2)
    ours = recorder.ours
    put(public.qkv.weight, torch.cat([ours.q_proj.weight, ours.k_proj.weight, ours.v_proj.weight]))
    put(public.temperature, ours.temperature)
    recorder.linears(out_proj=public.proj)
    recorder.save("xcit", "facebookresearch/xcit 82f5291, XCA", public, recorder.inputs(9))


def make_efficient(folder: Path) -> None:
    module = load(folder / "cmsflash+efficient-attention" / "efficient_attention.py")
    recorder = Recorder("efficient", "NS", 16, 2)
    public = module.EfficientAttention(16, 16, 2, 16)
    recorder.linears(q_proj=public.queries, k_proj=public.keys, v_proj=public.values, out_proj=public.reprojection)

    def run(x: Tensor) -> Tensor:
        image = x.mT.unflatten(2, (3, 3))
        return (public(image) - image).flatten(2).mT

    source = "cmsflash/efficient-attention 46a5f9e, EfficientAttention on a 3 x 3 grid, less its residual"
    recorder.save("efficient", source, run, recorder.inputs(9))


def make_differential(folder: Path) -> None:
    root = folder / "microsoft+unilm" / "Diff-Transformer"
    norm = load(root / "rms_norm.py")
    module = load(
        root / "multihead_diffattn.py",
        kernel__rotary=SimpleNamespace(apply_rotary_emb=lambda x, *_, **__: x),
        flash_attn=SimpleNamespace(flash_attn_func=None),
        rms_norm=norm,
    )
    for index in (0, 3):
        recorder = Recorder("differential", "CS", 16, 4, layer=(index, 4))
        recorder.without_biases()
        public = module.MultiheadDiffAttn(16, index, 2)
        ours = recorder.ours
        recorder.linears(q_proj=public.q_proj, k_proj=public.k_proj, v_proj=public.v_proj, out_proj=public.out_proj)
        for i, (q, k) in enumerate(((public.lambda_q1, public.lambda_k1), (public.lambda_q2, public.lambda_k2))):
            put(q, ours.lambdas[0, i])
            put(k, ours.lambdas[1, i])
        put(public.subln.weight, ours.norm.weight)
        recorder.save(
            f"differential_layer{index}",
            "microsoft/unilm 768a3c8, MultiheadDiffAttn without rotary positions",
            lambda x, public=public: public(x, ()),
            recorder.inputs(9),
        )


def make_dpfp(folder: Path) -> None:
    source = (folder / "IDSIA+lmtool-fwp" / "src" / "model_main.py").read_text()
    start = source.index("class DPFPMultiHeadAttn")
    text = source[start : source.index("\nclass ", start)]
    assert "eps = 1e-5" in text
    module: dict[str, Any] = {"torch": torch, "nn": nn, "F": F}
    exec(text.replace("eps = 1e-5", "eps = 0.0"), module)
    for nu in (1, 3):
        recorder = Recorder("dpfp", "NS", 16, 2, nu=nu)
        recorder.without_biases()
        ours = recorder.ours
        public = module["DPFPMultiHeadAttn"](2, 16, 8, 0.0, pre_lnorm=True, n_roll=nu).eval()
        public.layer_norm = nn.Identity()
        put(public.q_net.weight, ours.q_proj.weight)
        put(public.kv_net.weight, torch.cat([ours.k_proj.weight, ours.v_proj.weight]))
        put(public.o_net.weight, ours.out_proj.weight)
        recorder.save(
            f"dpfp_nu{nu}",
            "IDSIA/lmtool-fwp 0159201, DPFPMultiHeadAttn",
            lambda x, public=public: (public(x.transpose(0, 1)) - x.transpose(0, 1)).transpose(0, 1),
            recorder.inputs(13, faint=None),
            reason="its epsilon of 1e-5 after the factor 1/sqrt(E), which decides the first numbers, is set to 0",
        )


def make_moba(folder: Path) -> None:
    module = load(folder / "MoonshotAI+MoBA" / "moba" / "moba_naive.py")
    recorder = Recorder("moba", "CS", 16, 2, block_size=4, top_k=3)
    ours = recorder.ours

    def run(x: Tensor) -> Tensor:
        rows = []
        for row in x:
            q, k, v = (linear(row).unflatten(-1, (2, 8)) for linear in (ours.q_proj, ours.k_proj, ours.v_proj))
            ends = torch.tensor([0, len(row)])
            rows.append(module.moba_attn_varlen_naive(q, k, v, ends, len(row), 4, 3).flatten(1))
        return ours.out_proj(torch.stack(rows))

    source = "MoonshotAI/MoBA 61e456b, moba_attn_varlen_naive"
    recorder.save("moba", source, run, recorder.inputs(23), reason="projections are torch's")


def make_synthesizer(folder: Path) -> None:
    root = folder / "leaderj1001+Synthesizer-Rethinking-Self-Attention-Transformer-Models"
    module = load(root / "synthesizer.py", {"import torchvision\n": ""})
    source = "leaderj1001/Synthesizer-Rethinking-Self-Attention-Transformer-Models 3ee5829, "
    recorder = Recorder("synthesizer", "NS", 12, 1, max_length=12)
    recorder.identity()
    public = module.SynthesizerDense(12, 12)
    recorder.linears(q_proj=public.dense[0], v_proj=public.value_fc)
    put(public.dense[2].weight, recorder.ours.scores.mT)
    put(public.dense[2].bias, torch.zeros(12))
    recorder.save(
        "synthesizer_dense",
        source + "SynthesizerDense, one head",
        lambda x: public(x)[0],
        recorder.inputs(12),
        reason="its second layer has a bias, zero here",
    )
    recorder = Recorder("synthesizer", "NS", 12, 1, max_length=12, config_variant="random_plus")
    recorder.identity()
    mixture = module.MixtureSynthesizers(12, 12)
    recorder.linears(q_proj=mixture.query_fc, k_proj=mixture.key_fc, v_proj=mixture.value_fc)
    with torch.no_grad():
        for parameter in mixture.query_fc.parameters():
            parameter.mul_(12**-0.5)
    put(mixture.attention, recorder.ours.scores)
    recorder.save(
        "synthesizer_random_plus",
        source + "MixtureSynthesizers, one head",
        lambda x: mixture(x)[0],
        recorder.inputs(12),
        reason="it does not divide products by sqrt(E): its queries are",
    )


def make_luong(folder: Path) -> None:
    module = load(
        folder / "OpenNMT+OpenNMT-py" / "onmt" / "modules" / "global_attention.py",
        {
            "from onmt.modules.sparse_activations import sparsemax": "",
            "from onmt.utils.misc import sequence_mask": "",
        },
    )
    for score in ("dot", "general", "concat"):
        recorder = Recorder("luong", "NC", 12, 1, score=score)
        ours = recorder.ours
        public = module.GlobalAttention(12, attn_type={"concat": "mlp"}.get(score, score))
        if score == "general":
            put(public.linear_in.weight, ours.score_weight[0].mT)
        if score == "concat":
            put(public.linear_query.weight, ours.score_weight[0, :, :12])
            put(public.linear_query.bias, torch.zeros(12))
            put(public.linear_context.weight, ours.score_weight[0, :, 12:])
            put(public.v.weight, ours.score_vector)

        def run(x: Tensor, source: Tensor, public: Any = public, ours: Any = ours) -> Tensor:
            return ours.out_proj(public(ours.q_proj(x), ours.k_proj(source))[1] @ ours.v_proj(source))

        recorder.save(
            f"luong_{score}",
            "OpenNMT/OpenNMT-py 97111d9, GlobalAttention",
            run,
            recorder.inputs(7, 9),
            reason="its weights, times the values; projections are torch's",
        )


def make_transformer_xl(folder: Path) -> None:
    module = load(
        folder / "kimiyoung+transformer-xl" / "pytorch" / "mem_transformer.py",
        {
            "from proj_adaptive_softmax import ProjectedAdaptiveLogSoftmax": "",
            "from log_uniform_sampler import LogUniformSampler, sample_logits": "",
        },
    )
    segment, memory = 5, 7
    recorder = Recorder("transformer_xl", "CS", 16, 2, segment=segment, memory=memory)
    ours = recorder.ours
    public = module.RelPartialLearnableMultiHeadAttn(2, 16, 8, 0.0, pre_lnorm=True)
    public.layer_norm = nn.Identity()
    put(public.qkv_net.weight, torch.cat([ours.q_proj.weight, ours.k_proj.weight, ours.v_proj.weight]))
    recorder.linears(out_proj=public.o_net, position_proj=public.r_net)
    positions = module.PositionalEmbedding(16)

    def run(x: Tensor) -> Tensor:
        x, outputs = x.transpose(0, 1), []
        for start in range(0, len(x), segment):
            now, before = x[start : start + segment], x[max(start - memory, 0) : start].detach()
            count = len(now) + len(before)
            later = torch.ones(len(now), count, dtype=torch.bool).triu(1 + len(before))
            r = positions(torch.arange(count - 1, -1, -1.0))
            out = public(now, r, ours.content_bias, ours.position_bias, attn_mask=later[:, :, None], mems=before)
            outputs.append(out - now)
        return torch.cat(outputs).transpose(0, 1)

    source = "kimiyoung/transformer-xl 44781ed, RelPartialLearnableMultiHeadAttn, segment by segment"
    recorder.save("transformer_xl_cs", source, run, recorder.inputs(23))


def make_adaptive_span(folder: Path) -> None:
    root = folder / "facebookresearch+adaptive-span"
    load(root / "adaptive_span.py", {"1e-8": "0.0"})
    sys.modules["adaptive_span"] = sys.modules["public_adaptive_span"]
    module = load(
        root / "models.py",
        {
            "from persistent_memory import PersistentMemory": "",
            "from adaptive_io import build_adaptive_io, compute_dummy_loss": "",
        },
    )
    size, ramp = 16, 3
    recorder = Recorder("adaptive_span", "CS", 16, 2, max_span=size, ramp=ramp, include_self=False, perturbation=0.1)
    ours = recorder.ours
    put(ours.reach, torch.tensor([0.45, 0.7]))
    public = module.SeqAttention(
        8,
        2,
        size,
        0.0,
        {
            "adapt_span_enabled": True,
            "adapt_span_loss": 0.0,
            "adapt_span_ramp": ramp,
            "adapt_span_init": 0.0,
            "adapt_span_cache": False,
        },
        {"pers_mem_size": 0},
    )
    put(public.adaptive_span._mask.current_val, ours.reach - (ramp + 1) / size)
    positions = F.pad(ours.position[1:], (0, 0, 0, 1)).flip(0).mT.unsqueeze(0)

    def run(x: Tensor) -> Tensor:
        q, k, v = (ours.split_heads(linear(x)).flatten(0, 1) for linear in (ours.q_proj, ours.k_proj, ours.v_proj))
        k, v = (F.pad(y, (0, 0, size, 0)) for y in (k, v))
        heads = public(q, k, v, positions).unflatten(0, (len(x), 2))
        return ours.out_proj(ours.merge_heads(heads))

    recorder.save(
        "adaptive_span",
        "facebookresearch/adaptive-span 27b815f, SeqAttention after a cache of zeros",
        run,
        recorder.inputs(25),
        rows=(13, None),
        reason="its 1e-8 beside the sum of weights set to 0, its span one token shorter; rows beyond the zeros",
    )


if __name__ == "__main__":
    record_all(globals())
