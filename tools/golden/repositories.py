"""Layers of single repositories, ``python -m tools.golden repositories FOLDER``.

FOLDER contains a checkout per repository, named OWNER+NAME; each function names repository and commit.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tools.golden.record import OURS, Recorder, draws, load, projected, put, save_start, sequence_first

# --- softmax attention with other scores -----------------------------------------------------------------------------


def make_luong() -> None:
    absent = ("from onmt.modules.sparse_activations import sparsemax", "from onmt.utils.misc import sequence_mask")
    module = load("OpenNMT/OpenNMT-py/onmt/modules/global_attention.py", dict.fromkeys(absent, ""))
    for score in ("dot", "general", "concat"):
        recorder = Recorder("luong", "NC", 12, 1, score=score)
        ours, public = recorder.ours, module.GlobalAttention(12, attn_type={"concat": "mlp"}.get(score, score))
        if score == "general":
            recorder.copy(public, "score_weight.mT=linear_in.weight")
        if score == "concat":
            recorder.copy(public, "score_vector=v.weight")
            put(public.linear_query.weight, ours.score_weight[0, :, :12])
            put(public.linear_query.bias, torch.zeros(12))
            put(public.linear_context.weight, ours.score_weight[0, :, 12:])

        def run(x: Tensor, source: Tensor, public: Any = public, ours: Any = ours) -> Tensor:
            return ours.out_proj(public(ours.q_proj(x), ours.k_proj(source))[1] @ ours.v_proj(source))

        reason = f"its weights, times the values; {OURS}"
        recorder.save("OpenNMT/OpenNMT-py 97111d9, GlobalAttention", run, 7, 9, case=f"luong_{score}", reason=reason)


def make_differential() -> None:
    module = load(
        "microsoft/unilm/Diff-Transformer/multihead_diffattn.py",
        kernel__rotary=SimpleNamespace(apply_rotary_emb=lambda x, *_, **__: x),
        flash_attn=SimpleNamespace(flash_attn_func=None),
        rms_norm=load("microsoft/unilm/Diff-Transformer/rms_norm.py"),
    )
    source = "microsoft/unilm 768a3c8, MultiheadDiffAttn without rotary positions"
    for index in (0, 3):
        recorder = Recorder("differential", "CS", 16, 4, layer=(index, 4))
        public = module.MultiheadDiffAttn(16, index, 2)
        recorder.copy(public, "q_proj k_proj v_proj out_proj norm.weight=subln.weight")
        for i, (q, k) in enumerate(((public.lambda_q1, public.lambda_k1), (public.lambda_q2, public.lambda_k2))):
            put(q, recorder.ours.lambdas[0, i])
            put(k, recorder.ours.lambdas[1, i])
        recorder.save(source, lambda x, public=public: public(x, ()), 9, case=f"differential_layer{index}")


def make_synthesizer() -> None:
    name = "leaderj1001/Synthesizer-Rethinking-Self-Attention-Transformer-Models"
    module = load(f"{name}/synthesizer.py", {"import torchvision\n": ""})
    recorder = Recorder("synthesizer", "NS", 12, 1, max_length=12).identity()
    public = module.SynthesizerDense(12, 12)
    recorder.copy(public, "q_proj=dense.0 v_proj=value_fc scores.mT=dense.2.weight")
    put(public.dense[2].bias, torch.zeros(12))
    reason = "its second layer has a bias, zero here"
    source = f"{name} 3ee5829, SynthesizerDense, one head"
    recorder.save(source, public, 12, case="synthesizer_dense", reason=reason)
    recorder = Recorder("synthesizer", "NS", 12, 1, max_length=12, variant="random_plus").identity()
    mixture = module.MixtureSynthesizers(12, 12)
    recorder.copy(mixture, "q_proj=query_fc k_proj=key_fc v_proj=value_fc scores=attention")
    for parameter in mixture.query_fc.parameters():
        put(parameter, parameter * 12**-0.5)
    reason = "it does not divide products by sqrt(E): its queries are"
    source = f"{name} 3ee5829, MixtureSynthesizers, one head"
    recorder.save(source, mixture, 12, case="synthesizer_random_plus", reason=reason)


def make_sigmoid() -> None:
    module = load(
        "apple/ml-sigmoid-attention/attention_simulator/src/attention_simulator/layers/attention.py",
        attention_simulator=SimpleNamespace(),
        attention_simulator__layers=SimpleNamespace(),
        attention_simulator__layers__position_embedding=SimpleNamespace(alibi=None, apply_rotary_emb=None),
    )
    recorder = Recorder("sigmoid", "NS")
    public = module.Attention(16, torch.sigmoid, num_heads=2, bias=True, attn_bias=-math.log(13))
    recorder.copy(public, "q_proj+k_proj+v_proj=qkv out_proj=proj")
    source = "apple/ml-sigmoid-attention 9273b49, Attention with a bias of -ln n"
    recorder.save(source, lambda x: public(x)["attn_proj"], 13)


def make_transformer_xl() -> None:
    absent = ("from proj_adaptive_softmax import ProjectedAdaptiveLogSoftmax",)
    absent += ("from log_uniform_sampler import LogUniformSampler, sample_logits",)
    module = load("kimiyoung/transformer-xl/pytorch/mem_transformer.py", dict.fromkeys(absent, ""))
    segment, memory = 5, 7
    recorder = Recorder("transformer_xl", "CS", segment=segment, memory=memory)
    ours, positions = recorder.ours, module.PositionalEmbedding(16)
    public = module.RelPartialLearnableMultiHeadAttn(2, 16, 8, 0.0, pre_lnorm=True)
    public.layer_norm = nn.Identity()
    recorder.copy(public, "q_proj+k_proj+v_proj=qkv_net out_proj=o_net position_proj=r_net")

    def run(x: Tensor) -> Tensor:
        outputs = []
        for start in range(0, len(x), segment):
            now, before = x[start : start + segment], x[max(start - memory, 0) : start].detach()
            count = len(now) + len(before)
            later = torch.ones(len(now), count, dtype=torch.bool).triu(1 + len(before))
            r = positions(torch.arange(count - 1, -1, -1.0))
            out = public(now, r, ours.content_bias, ours.position_bias, attn_mask=later[:, :, None], mems=before)
            outputs.append(out - now)
        return torch.cat(outputs)

    source = "kimiyoung/transformer-xl 44781ed, RelPartialLearnableMultiHeadAttn, segment by segment"
    recorder.save(source, sequence_first(run), 23, case="transformer_xl_cs")


def make_adaptive_span() -> None:
    span_mask = load("facebookresearch/adaptive-span/adaptive_span.py", {"1e-8": "0.0"})
    absent = ("from persistent_memory import PersistentMemory",)
    absent += ("from adaptive_io import build_adaptive_io, compute_dummy_loss",)
    module = load("facebookresearch/adaptive-span/models.py", dict.fromkeys(absent, ""), adaptive_span=span_mask)
    size, ramp = 16, 3
    recorder = Recorder("adaptive_span", "CS", max_span=size, ramp=ramp, include_self=False, perturbation=0.1)
    ours = recorder.ours
    put(ours.reach, torch.tensor([0.45, 0.7]))
    span = {"enabled": True, "loss": 0.0, "ramp": ramp, "init": 0.0, "cache": False}
    options = {f"adapt_span_{name}": value for name, value in span.items()}
    public = module.SeqAttention(8, 2, size, 0.0, options, {"pers_mem_size": 0})
    put(public.adaptive_span._mask.current_val, ours.reach - (ramp + 1) / size)
    positions = F.pad(ours.position[1:], (0, 0, 0, 1)).flip(0).mT.unsqueeze(0)

    def core(*heads: Tensor) -> Tensor:
        q, k, v = (x.flatten(0, 1) for x in heads)
        k, v = (F.pad(x, (0, 0, size, 0)) for x in (k, v))
        return public(q, k, v, positions).unflatten(0, (-1, 2))

    source = "facebookresearch/adaptive-span 27b815f, SeqAttention after a cache of zeros"
    reason = "its 1e-8 beside the sum of weights set to 0, its span one token shorter; rows beyond the zeros"
    recorder.save(source, recorder.around(core), 25, rows=(13, None), reason=reason)


# --- kernels ---------------------------------------------------------------------------------------------------------


def make_linear() -> None:
    features = load("idiap/fast-transformers/fast_transformers/feature_maps/base.py")
    module = load(
        "idiap/fast-transformers/fast_transformers/attention/linear_attention.py",
        part=("class LinearAttention", "\n# Register"),
        names={"Module": nn.Module, "EventDispatcher": SimpleNamespace(get=lambda _: None)},
    )
    elu = features.ActivationFunctionFeatureMap.factory(lambda x: F.elu(x) + 1)
    public = module.LinearAttention(8, feature_map=elu, eps=0.0)

    def core(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        count = SimpleNamespace(float_matrix=torch.ones(k.shape[:2]))
        return public(q, k, v, SimpleNamespace(all_ones=True), None, count)

    source, reason = "idiap/fast-transformers 2ad36b9, LinearAttention", f"with eps of 0; {OURS}"
    for pattern, lengths in (("NS", (13,)), ("NC", (7, 13))):
        recorder = Recorder("linear", pattern)
        run = recorder.around(core, tokens_first=True)
        recorder.save(source, run, *lengths, case=f"linear_{pattern.lower()}", reason=reason)


def make_flowformer() -> None:
    module, plain = load("thuml/Flowformer/Flow_Attention.py"), "Flow_Attention"
    for pattern, name, lengths in (("NS", plain, (9,)), ("NC", plain, (7, 9)), ("CS", f"{plain}_Causal", (9,))):
        recorder = Recorder("flowformer", pattern)
        public = getattr(module, name)(16, 16, 16, 2).eval()
        recorder.copy(public, "q_proj=query_projection k_proj=key_projection")
        recorder.copy(public, "v_proj=value_projection out_proj=out_projection")
        source, case = f"thuml/Flowformer 61f5d8c, {name}", f"flowformer_{pattern.lower()}"
        recorder.save(source, projected(public), *lengths, case=case)


def make_efficient() -> None:
    public = load("cmsflash/efficient-attention/efficient_attention.py").EfficientAttention(16, 16, 2, 16)
    recorder = Recorder("efficient", "NS")
    recorder.copy(public, "q_proj=queries k_proj=keys v_proj=values out_proj=reprojection")

    def run(x: Tensor) -> Tensor:
        image = x.mT.unflatten(2, (3, 3))
        return (public(image) - image).flatten(2).mT

    source = "cmsflash/efficient-attention 46a5f9e, EfficientAttention on a 3 x 3 grid, less its residual"
    recorder.save(source, run, 9)


def make_xcit() -> None:
    public = load("facebookresearch/xcit/xcit.py", part=("class XCA(", "\nclass ")).XCA(16, num_heads=2)
    recorder = Recorder("xcit", "NS").copy(public, "q_proj+k_proj+v_proj=qkv temperature out_proj=proj")
    recorder.save("facebookresearch/xcit 82f5291, XCA", public, 9)


def make_dpfp() -> None:
    part = "class DPFPMultiHeadAttn", "\nclass "
    module = load("IDSIA/lmtool-fwp/src/model_main.py", {"eps = 1e-5": "eps = 0.0"}, part=part)
    reason = "its epsilon of 1e-5 after the factor 1/sqrt(E), which decides the first numbers, is set to 0"
    for nu in (1, 3):
        public = module.DPFPMultiHeadAttn(2, 16, 8, 0.0, pre_lnorm=True, n_roll=nu).eval()
        public.layer_norm = nn.Identity()
        recorder = Recorder("dpfp", "NS", nu=nu).copy(public, "q_proj=q_net k_proj+v_proj=kv_net out_proj=o_net")
        run = sequence_first(lambda x, public=public: public(x) - x)
        source = "IDSIA/lmtool-fwp 0159201, DPFPMultiHeadAttn"
        recorder.save(source, run, 13, case=f"dpfp_nu{nu}", faint=None, reason=reason)


def make_kernelized() -> None:
    dense = load("pkuzengqi/Skyformer/src/models/attention.py")
    recorder = Recorder("kernelized", "NS")
    public = dense.SoftmaxAttention_RBF({"attention_dropout": 0.0, "head_dim": 8})
    core = recorder.around(lambda q, k, v: public(q, k, v, torch.ones(len(q), q.shape[2])))
    recorder.save("pkuzengqi/Skyformer 1a677cb, SoftmaxAttention_RBF", core, 9)


def make_skyformer() -> None:
    recorder = Recorder("skyformer", "NS", 32, 1, num_landmarks=6)
    changes = {
        "from models.attention import SoftmaxAttention as SelfAttention": "",
        "from config import Config": "",
        "iterative_inv(STAS, 6)": "iterative_inv(STAS, 40)",
    }
    module = load("pkuzengqi/Skyformer/src/models/attention_skyformer.py", changes)
    config = {"device": "cpu", "max_seq_len": 9, "accumulation": 1, "sampling_factor": 1, "nb_features": 6}
    config |= {"head_dim": 32, "sketched_kernel": "kernel_RS_RBF", "no_projection": False}
    public = module.Skyformer(config)
    index = (recorder.ours.places * 9).long()
    chosen = torch.cat([index[:3], index[3:] + 9]).view(1, 1, 6)
    public.uniform_sketching = lambda *_: (chosen.expand(2, -1, -1), torch.ones(2, 1, 6))
    core = recorder.around(lambda q, k, v: public(q, k, v, torch.ones(len(q), q.shape[2])))
    reason = "40 steps of its iteration for the inverse instead of 6; its scale is right for heads of 32 alone"
    recorder.save("pkuzengqi/Skyformer 1a677cb, Skyformer", core, 9, reason=reason)


def make_soft() -> None:
    kernels = {
        "subtraction_gaussian_kernel": lambda q, k: (q.unsqueeze(-2) - k.mT.unsqueeze(-3)).square().sum(dim=-1),
        "newton_inverse_kernel": lambda matrix, _: torch.linalg.inv(matrix + 0.01 * torch.eye(matrix.shape[-1])),
    }
    part = "class SoftmaxFreeAttentionKernel", "\nclass SoftmaxFreeTransformer"
    module = load("fudan-zvg/SOFT/models/softmax_free_transformer.py", part=part, names=kernels)
    recorder = Recorder("soft", "NS", num_landmarks=3, conv_kernel_size=None)
    public = module.SoftmaxFreeAttention(16, 2, 2, 0).eval()
    recorder.copy(public, "q_proj=W_q v_proj=W_v out_proj=ff landmark_norm=attn.Qnorm_act.0")
    weight = recorder.ours.landmark_map.weight[:, :, None, None].expand(-1, -1, 2, 2).contiguous() / 4
    put(public.attn.Qlandmark_op.weight, weight)
    order = torch.tensor([0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11])  # groups of 2 x 2 of a grid 2 x 6 after another
    back = torch.argsort(order)
    source = "fudan-zvg/SOFT d3febc3, SoftmaxFreeAttention on a grid of 2 x 6"
    reason = "its convolution takes means of four tokens; its CUDA kernels (distances, inverse) by their formula"
    recorder.save(source, lambda x: public(x[:, back], 2, 6)[:, order], 12, reason=reason)


# --- landmarks and compressed keys -----------------------------------------------------------------------------------


def make_set_transformer() -> None:
    module = load("juho-lee/set_transformer/modules.py", {"math.sqrt(self.dim_V)": "8**0.5"})
    recorder = Recorder("set_transformer", "NS", num_inducing=3).identity()
    public = module.ISAB(16, 16, 2, 3)
    inner, outer = public.mab0, public.mab1
    put(public.I, recorder.ours.inducing.transpose(0, 1).flatten(1))
    put(inner.fc_q.weight, torch.eye(16))
    recorder.copy(inner, "k_proj=fc_k v_proj=fc_v slot_layer=fc_o")
    recorder.copy(outer, "q_proj=fc_q slot_k=fc_k slot_v=fc_v")
    for parameter in (inner.fc_q.bias, *outer.fc_o.parameters()):
        put(parameter, torch.zeros_like(parameter))
    reason = "divided by sqrt(E) instead of sqrt(D), without the outer block's residual and feed-forward layer"
    recorder.save("juho-lee/set_transformer 73432c6, ISAB", lambda x: public(x) - outer.fc_q(x), 9, reason=reason)


def make_luna() -> None:
    module = load(
        "XuezheMax/fairseq-apollo/fairseq/modules/luna_attention.py",
        part=("class LunarMultiheadAttention", None),
        names={
            "with_incremental_state": lambda cls: cls,
            "utils": SimpleNamespace(softmax=lambda x, dim, **_: x.softmax(dim=dim)),
        },
    )
    source = "XuezheMax/fairseq-apollo 3644d20, "
    for pattern, public, names in (
        ("NC", module.LunarMultiheadAttention(16, 2, 2), "out_proj k_proj=pc_proj slots_k=c_proj"),
        ("CS", module.LunarCausalAttention(16, 2), "out_proj pack_k=pc_proj k_proj=c_proj"),
    ):
        recorder = Recorder("luna", pattern, num_landmarks=3).copy(public, f"slots_q=pq_proj q_proj {names}")

        def run(x: Tensor, *rest: Tensor, public: Any = public, slots: Tensor = recorder.ours.slots) -> Any:
            return public(x, slots.unsqueeze(1).expand(-1, x.shape[1], -1), *rest)

        lengths, case = (7, 9)[pattern == "CS" :], f"luna_{pattern.lower()}"
        recorder.save(f"{source}{type(public).__name__} with P of ours", sequence_first(run), *lengths, case=case)
    names = "slots_q.weight=pq_proj.weight q_proj.weight k_proj.weight=pc_proj.weight slots_k.weight=c_proj.weight "
    found = draws(lambda: module.LunarMultiheadAttention(16, 2, 2), names + "out_proj.weight")
    save_start(source + "LunarMultiheadAttention", "luna", "NC", 16, 2, statistics=found)


def make_nsa() -> None:
    name = "XunhaoLai/native-sparse-attention-triton"
    root = f"{name}/native_sparse_attention/ops/torch"
    compressed = load(f"{root}/compressed_attention.py").compressed_attention_torch
    sparse = load(f"{root}/topk_sparse_attention.py").topk_sparse_attention_torch
    sizes = {"block_size": 4, "num_blocks": 4, "window_size": 5, "compress_size": 4, "compress_stride": 2}
    for case, options in (("nsa", {}), ("nsa_means", {"compression": "mean", "separate_kv": False})):
        recorder = Recorder("nsa", "CS", 16, 4, num_kv_heads=2, **sizes, **options)

        def run(x: Tensor, ours: Any = recorder.ours) -> Tensor:
            [row] = x
            n = len(row)
            ends = torch.tensor([0, n])
            q, k, v = (linear(row).unflatten(-1, (-1, 4)) for linear in (ours.q_proj, ours.k_proj, ours.v_proj))
            keys, values = ((y.chunk(3, dim=1) if ours.separate_kv else (y,) * 3) for y in (k, v))
            slots = []
            for y, mlp in ((keys[0], ours.compress_k), (values[0], ours.compress_v)):
                blocks = y.unfold(0, 4, 2).permute(1, 0, 3, 2)  # [H, J, l, E]
                block = blocks.mean(dim=2)
                if mlp is not None:
                    block = mlp.output(mlp.hidden((blocks + mlp.positions).flatten(2)).relu())
                slots.append(block.transpose(0, 1))
            count = torch.tensor([0, len(slots[0])])
            first, chosen = compressed(q, *slots, 4, 2, 4, 4, ends, count, n, len(slots[0]))
            second = sparse(q, keys[1], values[1], chosen.long(), 4, ends)
            near = torch.ones(n, n, dtype=torch.bool).tril().triu(-4)
            heads = (y.transpose(0, 1) for y in (q, keys[2], values[2]))
            third = F.scaled_dot_product_attention(*heads, near, enable_gqa=True).transpose(0, 1)
            gates = ours.gate(row).sigmoid().unflatten(-1, (-1, 3)).split(1, dim=-1)
            mixed = sum(g * y for g, y in zip(gates, (first, second, third), strict=True))
            return ours.out_proj(mixed.flatten(1)[None])

        source = f"{name} 9bea856, compressed_attention_torch, topk_sparse_attention_torch"
        reason = "projections, the MLP of a block, the window and the gates are torch's"
        recorder.save(source, run, 32, case=case, batch=1, reason=reason)


def make_yoso() -> None:
    path = "mlpen/YOSO/encoders/backbones/efficient_attentions/yoso/yoso_v1/yoso.py"
    hashing = load(path, part=("def hashing", "\nclass ")).hashing
    recorder = Recorder("yoso", "NS", num_hashes=5, hash_length=3)

    def core(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        outputs = []
        for head in range(2):
            planes = recorder.ours.hyperplanes[head].transpose(0, 1).flatten(1)  # [E, m tau]
            with mock.patch.object(torch, "randn", mock.Mock(return_value=planes)):
                codes = hashing(q[:, head], k[:, head], 5, 3)
            same = (codes[0].unsqueeze(2) == codes[1].unsqueeze(1)).to(q.dtype).mean(dim=-1)
            outputs.append(F.normalize(same @ v[:, head], dim=-1))
        return torch.stack(outputs, dim=1)

    reason = "its tables of values, which need a GPU, are sums over pairs with equal codes; the gradient is estimated"
    options = {"faint": None, "gradients": False, "reason": reason}
    recorder.save("mlpen/YOSO 6000487, yoso_v1.hashing", recorder.around(core), 9, **options)


# --- fixed patterns --------------------------------------------------------------------------------------------------


def make_moba() -> None:
    naive = load("MoonshotAI/MoBA/moba/moba_naive.py").moba_attn_varlen_naive
    recorder = Recorder("moba", "CS", block_size=4, top_k=3)

    def core(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        n = q.shape[1]
        return torch.stack([naive(*row, torch.tensor([0, n]), n, 4, 3) for row in zip(q, k, v, strict=True)])

    run = recorder.around(core, tokens_first=True)
    recorder.save("MoonshotAI/MoBA 61e456b, moba_attn_varlen_naive", run, 23, reason=OURS)


def make_scatterbrain() -> None:
    root = "HazyResearch/fly/src/models/attention"
    features = load(
        f"{root}/feature_maps_sb.py",
        src__models__attention__projection_utils=SimpleNamespace(gaussian_orthogonal_random_matrix=None),
    )

    def near(x: Tensor, context: int) -> tuple[Tensor, Tensor]:
        place = torch.arange(x.shape[2])[:, None] - context // 2 + torch.arange(context)
        inside = (place >= 0) & (place < x.shape[2])
        return x[:, :, place.clamp(0, x.shape[2] - 1)], inside

    def products(q: Tensor, k: Tensor, _mask: Tensor, _lengths: Tensor, context: int) -> Tensor:
        keys, inside = near(k, context)
        return torch.einsum("bhte,bhtje->bhtj", q, keys).masked_fill(~inside, -1e24)

    def average(weights: Tensor, v: Tensor) -> Tensor:
        values, inside = near(v, weights.shape[-1])
        return torch.einsum("bhtj,bhtjd->bhtd", weights * inside, values)

    module = load(
        f"{root}/sblocal_attention.py",
        fast_transformers=SimpleNamespace(),
        fast_transformers__local_product=SimpleNamespace(local_dot_product=products, local_weighted_average=average),
        src__models__modules__masking=SimpleNamespace(FullMask=None, LengthMask=None),
        src__models__attention__feature_maps_sb=features,
        src__models__attention__scatterbrain_utils=load(f"{root}/scatterbrain_utils.py"),
    )
    recorder = Recorder("scatterbrain", "NS", window=5, num_features=12)
    ours = recorder.ours
    ours.weights[1] = ours.weights[0]  # its heads share one matrix
    public = module.SBLocalAttention(11, 8, nb_features=12).eval()
    public.feature_map.new_feature_map = lambda _: None
    public.feature_map.projection_matrix = ours.weights[0, :6]
    core = recorder.around(lambda *heads: public(*heads)[0], tokens_first=True)
    reason = f"local products of fast_transformers by torch; {OURS}"
    recorder.save("HazyResearch/fly 6b73449, SBLocalAttention", core, 23, reason=reason)


def make_sparse_transformer() -> None:
    """TensorFlow's functions that the dense form calls, by torch."""
    tensorflow = SimpleNamespace(
        matrix_band_part=lambda x, low, _high: x.tril() if low < 0 else x.tril() - x.tril(-int(low) - 1),
        ones=torch.ones,
        zeros=lambda shape, dtype=None: torch.zeros(shape, dtype=dtype),
        minimum=min,
        range=lambda n, dtype=None: torch.arange(n, dtype=dtype),
        reshape=lambda x, shape: x.reshape(shape),
        transpose=lambda x, order=None: x.permute(order) if order else x.mT,
        equal=torch.eq,
        floormod=torch.remainder,
        logical_and=torch.logical_and,
        cast=lambda x, dtype: x.to(dtype),
        to_float=torch.Tensor.double,
        matmul=lambda x, y, transpose_b=False: x @ (y.mT if transpose_b else y),
        nn=SimpleNamespace(softmax=lambda x: x.softmax(dim=-1)),
        **{"float32": torch.float64, "float16": torch.float16, "int32": torch.int32},
    )
    module = load(
        "openai/sparse_attention/attention.py",
        tensorflow=tensorflow,
        blocksparse=SimpleNamespace(BlocksparseTransformer=None),
        utils=SimpleNamespace(shape_list=lambda x: list(x.shape), recomputable=lambda _: lambda f: f),
    )
    recorder = Recorder("sparse_transformer", "CS", layout="strided", spread="heads", stride=5)

    def core(*heads: Tensor) -> Tensor:
        modes = enumerate(("local", "strided"))
        return torch.stack([module.attention_impl(*(x[:, i] for x in heads), 1, mode, 5) for i, mode in modes], dim=1)

    source = "openai/sparse_attention c53f3bd, attention_impl, one head 'local' and one 'strided'"
    recorder.save(source, recorder.around(core), 23, reason=f"TensorFlow's functions by torch; {OURS}")


def make_logsparse() -> None:
    module = load(
        "AIStream-Peelout/flow-forecast/flood_forecast/transformer_xl/transformer_bottleneck.py",
        part=("class Attention(", "\nclass LayerNorm"),
        names={"activation_dict": {"Softmax": nn.Softmax}},
    )
    recorder = Recorder("logsparse", "CS", 8, 1, local=3, restart=8, kernel_size=3)
    ours, public = recorder.ours, module.Attention(1, 8, 40, True, 3, 8, sparse=True, attn_pdrop=0.0, resid_pdrop=0.0)
    weights = [linear.weight.unflatten(1, (3, 8)).transpose(1, 2) for linear in (ours.q_proj, ours.k_proj)]
    put(public.query_key.weight, *weights)
    recorder.copy(public, "q_proj.bias+k_proj.bias=query_key.bias v_proj.weight.mT=value.w v_proj.bias=value.b")
    recorder.copy(public, "out_proj.weight.mT=c_proj.w out_proj.bias=c_proj.b")
    source = "AIStream-Peelout/flow-forecast 304cf30, transformer_xl.transformer_bottleneck.Attention, one head"
    reason = "its early rows are dense by a rule with the total length; its last restart leaves out a token"
    recorder.save(source, public, 40, rows=(34, 40), reason=reason)
