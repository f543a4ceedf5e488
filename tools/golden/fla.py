"""Layers of the package flash-linear-attention 0.6.0, ``python -m tools.golden fla FOLDER``.

FOLDER is the target of ``pip install --no-deps --target FOLDER flash-linear-attention==0.6.0 fla-core==0.6.0 einops``.
The layers' own ``forward`` runs on the CPU. Their Triton kernels are replaced by the package's ``naive`` functions or,
for convolutions and norms, by the equations of their documentation.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tools.golden.record import OURS, Recorder, draws, load, pairs, put, save_start

SOURCE = "flash-linear-attention 0.6.0, "
KERNELS = "Triton kernels replaced by the repository's naive functions and by torch"
RATES = "step_proj.weight=a_proj.weight step_proj.bias=dt_bias log_rate=A_log norm_weight=o_norm.weight "


def gated_norm(module: Any, x: Tensor, gate: Tensor) -> Tensor:
    is_sigmoid = getattr(module, "activation", "swish") == "sigmoid"
    return norm(module, x) * (gate.sigmoid() if is_sigmoid else F.silu(gate))


def norm(module: Any, x: Tensor) -> Tensor:
    return x * (x.square().mean(dim=-1, keepdim=True) + module.eps).rsqrt() * module.weight


def unit(x: Tensor) -> Tensor:
    return x * (x.square().sum(dim=-1, keepdim=True) + 1e-6).rsqrt()


def convolution(module: Any, x: Tensor, **_: Any) -> tuple[Tensor, None]:
    weight = module.weight
    padded = F.pad(x.mT, (weight.shape[-1] - 1, 0))
    output = F.conv1d(padded, weight, module.bias, groups=len(weight)).mT
    return F.silu(output) if module.activation else output, None


def naive(path: str) -> Any:
    """Return a function of ``fla.ops``, by module and name."""
    return resolve_name(f"fla.ops.{path}")


def patch() -> None:
    """Replace what needs a GPU."""
    modules = resolve_name("fla.modules")
    modules.FusedRMSNormGated.forward, modules.RMSNorm.forward = gated_norm, norm
    modules.ShortConvolution.forward = convolution
    gla, delta = naive("gla.naive.naive_recurrent_gla"), naive("delta_rule.naive.delta_rule_recurrence")
    gated = naive("gated_delta_rule.naive.naive_recurrent_gated_delta_rule")
    rwkv6 = naive("rwkv6.recurrent_naive.naive_recurrent_rwkv6")
    forgetting = naive("forgetting_attn.naive.naive_forgetting_attn")
    kda, bounded = naive("kda.naive.naive_recurrent_kda"), naive("kda.gate.naive_kda_lowerbound_gate")
    gdn2, comba = naive("gdn2.naive.naive_recurrent_gdn2"), naive("comba.naive.naive_chunk_comba")
    product = naive("gated_delta_product.naive.naive_recurrent_gated_delta_product")

    def heads_first(kernel: Any, inputs: Any, *more: Any) -> Any:
        output, state = kernel(*(x.transpose(1, 2) for x in inputs), *more)
        return output.transpose(1, 2), state

    def run_gated(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, **more: Any) -> Any:
        decay = -more["A_log"].exp() * F.softplus(g + more["dt_bias"])
        return gated(unit(q), unit(k), v, beta.sigmoid(), decay, output_final_state=True)

    def run_kda(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, **more: Any) -> Any:
        rate, bias = more["A_log"], more["dt_bias"]
        decay = -rate.exp().unsqueeze(-1) * F.softplus(g + bias.view(g.shape[2:]))
        if more["lower_bound"] is not None:
            decay = bounded(g, rate, bias, more["lower_bound"], output_dtype=torch.float64)
        return kda(unit(q), unit(k), v, decay, beta.sigmoid() * (2 if more["allow_neg_eigval"] else 1))

    def run_product(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, num_householder: int, **_: Any) -> Any:
        more = {"output_final_state": True, "num_householder": num_householder}
        return product(unit(q), unit(k), v, g, beta, q.shape[-1] ** -0.5, **more)

    def run_comba(q: Tensor, k: Tensor, v: Tensor, p: Tensor, g: Tensor, beta: Tensor, **_: Any) -> Any:
        feedback = p.norm(dim=-1, keepdim=True) / k.norm(dim=-1, keepdim=True)
        return comba(unit(q), unit(k), v, feedback * unit(k), g, beta, output_final_state=True)

    for name, kernel, function in (
        ("gla", "fused_recurrent_gla", lambda q, k, v, gk, **_: gla(q, k, v, gk)),
        ("hgrn2", "fused_recurrent_gla", lambda q, k, v, gk, **_: gla(q * q.shape[-1] ** 0.5, k, v, gk)),
        (
            "delta_net",
            "fused_recurrent_delta_rule",
            lambda q, k, v, beta, **_: heads_first(delta, (unit(q), unit(k), v, beta)),
        ),
        ("gated_deltanet", "chunk_gated_delta_rule", run_gated),
        (
            "rwkv6",
            "fused_recurrent_rwkv6",
            lambda r, k, v, w, u, scale, **_: heads_first(rwkv6, (r, k, v, w), u, scale),
        ),
        ("forgetting_attn", "parallel_forgetting_attn", lambda q, k, v, f, **_: forgetting(q, k, v, f)),
        ("comba", "chunk_comba", run_comba),
        ("gated_deltaproduct", "chunk_gated_delta_product", run_product),
        ("kda", "chunk_kda", run_kda),
        ("gdn2", "chunk_gdn2", lambda q, k, v, g, b, w, **_: gdn2(unit(q), unit(k), v, g, b, w)),
    ):
        setattr(resolve_name(f"fla.layers.{name}"), kernel, function)
    hgrn2 = resolve_name("fla.layers.hgrn2")
    hgrn2.swish = F.silu
    hgrn2.rms_norm_linear = lambda x, weight, _b, linear, _c: (
        (x * (x.square().mean(dim=-1, keepdim=True) + 1e-5).rsqrt() * weight) @ linear.mT
    )
    resolve_name("fla.layers.rwkv6").token_shift = lambda x, _: F.pad(x, (0, 0, 1, -1)) - x


def layer(place: str, **options: Any) -> Any:
    """Build a layer, MODULE.CLASS, in eval mode, of width 16 with two heads unless options say otherwise."""
    cls = resolve_name(f"fla.layers.{place}")
    return cls(**{"hidden_size": 16, "num_heads": 2} | options).double().eval()


def save(recorder: Recorder, place: str, names: str, *, case: str = "", reason: str = KERNELS, **theirs: Any) -> None:
    """Copy the linear maps, what else is named and the convolutions of queries, keys and values, if any, and save."""
    public = layer(place, hidden_size=recorder.about["embed_dim"], **theirs)
    public._use_fused_qkv_conv = lambda **_: False
    recorder.copy(public, f"q_proj k_proj v_proj out_proj=o_proj {names}")
    if hasattr(public, "q_conv1d"):
        convolutions(recorder, public.q_conv1d, public.k_conv1d, public.v_conv1d)
    recorder.save(f"{SOURCE}layers.{place}", public, 17, case=case, reason=reason)


def convolutions(recorder: Recorder, *public: nn.Module) -> None:
    for ours, theirs in zip(recorder.ours.convolutions.values(), public, strict=True):
        put(theirs.weight, ours.weight.squeeze(2).flatten(1).mT)
        if theirs.bias is not None:
            put(theirs.bias, ours.bias)


def save_initial(attention: str, place: str, names: str, heads: int = 64, head_dim: int = 1, **theirs: Any) -> None:
    """Record the initial parameters of layers of width 64."""
    make = partial(layer, place, hidden_size=64, num_heads=heads, head_dim=head_dim, **theirs)
    options: dict[str, Any] = {"case": "kda_bounded_start", "decay": "bounded"} if "safe_gate" in theirs else {}
    save_start(f"{SOURCE}layers.{place}", attention, "CS", 64, heads, statistics=draws(make, names), **options)


def make_gla() -> None:
    for case, size in (("gla", 0), ("gla_conv", 4)):
        recorder = Recorder("gla", "CS", 24, 2, short_convolution=size, gate_rank=5)
        names = "gate_proj=g_proj norm_weight=g_norm_swish_gate.weight decay_map.0=gk_proj.0 decay_map.1=gk_proj.1"
        theirs = {"gate_low_rank_dim": 5, "use_short_conv": bool(size)}
        save(recorder, "gla.GatedLinearAttention", names, case=case, **theirs)


def make_hgrn2() -> None:
    for case, index, size in (("hgrn2", 0, 0), ("hgrn2_third_layer", 2, 4)):
        recorder = Recorder("hgrn2", "CS", layer=(index, 4), short_convolution=size)
        public = layer("hgrn2.HGRN2Attention", expand_ratio=8, use_short_conv=bool(size), layer_idx=index)
        recorder.copy(public, "q_proj k_proj=f_proj v_proj=i_proj out_proj=o_proj norm_weight=g_norm.weight")
        if size:
            convolutions(recorder, public.q_conv1d, public.f_conv1d, public.i_conv1d)
        bound = None if recorder.ours.bound is None else recorder.ours.bound.sigmoid().flatten()
        run = partial(public, lower_bound=bound)
        reason = KERNELS + "; its scale K^-1/2, which the paper does not have, is undone"
        recorder.save(SOURCE + "layers.hgrn2.HGRN2Attention", run, 13, case=case, reason=reason)


def make_deltanet() -> None:
    for case, size, negative in (("deltanet", 4, False), ("deltanet_plain", 0, True)):
        recorder = Recorder("deltanet", "CS", short_convolution=size, negative_eigenvalues=negative)
        theirs = {"use_short_conv": bool(size), "allow_neg_eigval": negative}
        save(recorder, "delta_net.DeltaNet", "strength_proj=b_proj norm_weight=o_norm.weight", case=case, **theirs)


def make_gated_deltanet() -> None:
    names = f"{RATES} strength_proj=b_proj gate_proj=g_proj"
    save(Recorder("gated_deltanet", "CS"), "gated_deltanet.GatedDeltaNet", names, head_dim=6, use_short_conv=True)


def start_gated_deltanet() -> None:
    names = "step_proj.bias=dt_bias step_proj.weight=a_proj.weight log_rate=A_log"
    save_initial("gated_deltanet", "gated_deltanet.GatedDeltaNet", names, head_dim=6)


def make_rwkv6() -> None:
    recorder, place = Recorder("rwkv6", "CS", layer=(1, 4), mix_rank=4, decay_rank=5), "rwkv6.RWKV6Attention"
    public, ours = layer(place, expand_k=1.0, proj_low_rank_dim=4, gate_low_rank_dim=5), recorder.ours
    public.g_proj.linear = nn.Linear(16, 16, bias=False)
    theirs = [3, 0, 1, 2, 4]  # w, k, v, r, g here; r, w, k, v, g there
    put(public.x_proj[0].linear.weight, ours.mix_in.unflatten(1, (5, 4))[:, theirs].flatten(1).mT)
    put(public.x_proj[2].weight, ours.mix_out[theirs].transpose(0, 1).flatten(1).reshape(4, 5, 16).permute(2, 1, 0))
    put(public.x_bias, ours.mix[theirs])
    recorder.copy(public, "mix_of_mix=x_proj.0.mu q_proj=r_proj.linear k_proj=k_proj.linear v_proj=v_proj.linear")
    recorder.copy(public, "gate_proj=g_proj.linear out_proj=o_proj bonus decay=w_proj.linear.lora.2.bias")
    recorder.copy(public.w_proj.linear, "decay_in.mT=lora.0.weight decay_out.mT=lora.2.weight")
    weight, bias = ours.norm_weight.flatten(), ours.norm_bias.flatten()
    public.gate_fn = F.silu
    public.g_norm.forward = lambda x: F.group_norm(x.flatten(0, 1), 2, weight, bias, eps=64e-5).view_as(x)
    reason = KERNELS + "; its low-rank gate replaced by a full map and its norm's epsilon by the released 64e-5"
    recorder.save(f"{SOURCE}layers.{place}", public, 13, reason=reason)


def make_forgetting() -> None:
    save(Recorder("forgetting", "CS"), "forgetting_attn.ForgettingAttention", "forget=f_proj")


def make_based() -> None:
    exact = load(Path(naive("based.naive").__file__), {"1e-6": "0.0"}).naive_parallel_based
    recorder = Recorder("based", "CS", feature_dim=6)
    reason = f"without the 1e-6 in its denominator; {OURS}"
    recorder.save(SOURCE + "ops.based.naive.naive_parallel_based", recorder.around(exact), 17, reason=reason)


def make_stick_breaking() -> None:
    recorder, breaking = Recorder("stick_breaking", "CS"), naive("stickbreaking_attn.naive.naive_stickbreaking_attn")
    core = recorder.around(lambda *heads: breaking(*heads)[0], tokens_first=True)
    recorder.save(SOURCE + "naive_stickbreaking_attn", core, 17, reason=OURS)


BOUNDED = {"safe_gate": True, "lower_bound": -5.0}
GATED = (("kda", "kda.KimiDeltaAttention", ""), ("gated_deltanet_2", "gdn2.GatedDeltaNet2", "write_proj=w_proj"))


def make_kda_and_gdn2() -> None:
    names = "gate_map.0=g_proj.0 gate_map.1=g_proj.1 log_rate=A_log decay_map.0.weight=f_proj.0.weight "
    names += "decay_map.1.weight=f_proj.1.weight decay_map.1.bias=dt_bias norm_weight=o_norm.weight "
    for name, place, more in GATED:
        copied = f"{names} strength_proj=b_proj {more}"
        save(Recorder(name, "CS"), place, copied, head_dim=8, allow_neg_eigval=False)
        recorder = Recorder(name, "CS", negative_eigenvalues=True)
        save(recorder, place, copied, case=f"{name}_negative", head_dim=8, allow_neg_eigval=True)
    recorder, (_, place, _) = Recorder("kda", "CS", decay="bounded"), GATED[0]
    save(recorder, place, f"{names} strength_proj=b_proj", case="kda_bounded", head_dim=8, **BOUNDED)


def start_kda_and_gdn2() -> None:
    maps = "decay_map.0=f_proj.0 decay_map.1=f_proj.1 gate_map.0=g_proj.0 gate_map.1=g_proj.1 q_proj v_proj "
    for name, place, more in GATED:
        linears = pairs(f"{maps} out_proj=o_proj strength_proj=b_proj {more}")
        names = " ".join(f"{ours}.weight={theirs}.weight" for ours, theirs in linears)
        names += " decay_map.1.bias=dt_bias log_rate=A_log gate_map.1.bias=g_proj.1.bias"
        for theirs in ({}, BOUNDED) if name == "kda" else ({},):
            save_initial(name, place, names, heads=32, head_dim=2, **theirs)


STARTS = "k_proj.weight v_proj.weight strength_proj.weight=b_proj.weight gate_proj.weight=g_proj.weight "
STARTS += "step_proj.bias=dt_bias log_rate=A_log "


def make_deltaproduct() -> None:
    """Record three factors; the package orders features by factor, head and feature, we by head, factor and feature."""
    recorder, place = Recorder("deltaproduct", "CS", num_factors=3), "gated_deltaproduct.GatedDeltaProduct"
    public = layer(place, head_dim=6, num_householder=3)

    def by_factor(x: Tensor) -> Tensor:
        return x.unflatten(0, (2, 3, -1)).transpose(0, 1).flatten(0, 2)

    recorder.copy(public, f"q_proj out_proj=o_proj gate_proj=g_proj {RATES}")
    convolutions(recorder, public.q_conv1d, public.k_conv1d, public.v_conv1d)
    for ours, theirs in (("k_proj", public.k_proj), ("v_proj", public.v_proj), ("strength_proj", public.b_proj)):
        put(theirs.weight, by_factor(recorder.ours.get_submodule(ours).weight))
    for theirs in (public.k_conv1d, public.v_conv1d):
        put(theirs.weight, by_factor(theirs.weight.flatten(1).clone()))
    recorder.save(f"{SOURCE}layers.{place}", public, 17, reason=KERNELS)
    save_initial("deltaproduct", place, STARTS)


def make_comba() -> None:
    """Record the layer with the feedback of the equation: the scale c of k is not divided out."""
    place, more = "comba.Comba", "feedback=decay correction=D"
    reason = f"{KERNELS}; the feedback is c k / |k|, as in the equation, instead of k / |k|"
    names = f"{RATES} gate_proj=g_proj strength_proj=b_proj {more}"
    save(Recorder("comba", "CS"), place, names, head_dim=6, reason=reason)
    save_initial("comba", place, STARTS + more)
