"""Layers of fla-org/flash-linear-attention bc3b101, ``python -m tools.golden fla CHECKOUT``.

The layers' own ``forward`` runs on the CPU. Their Triton kernels are replaced by the repository's ``naive`` functions
or, for convolutions and norms, by the equations of their documentation.
"""

from __future__ import annotations

import importlib
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from tools.golden.record import Recorder, drawn, load, put, save_start, seeded

SOURCE = "fla-org/flash-linear-attention bc3b101, "
KERNELS = "Triton kernels replaced by the repository's naive functions and by torch"
LINEARS = "q_proj k_proj v_proj out_proj=o_proj"


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
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(f"fla.ops.{module}"), name)


def patch() -> None:
    """Replace what needs a GPU."""
    modules = importlib.import_module("fla.modules")
    modules.FusedRMSNormGated.forward = gated_norm
    modules.RMSNorm.forward = norm
    modules.ShortConvolution.forward = convolution
    gla, delta = naive("gla.naive.naive_recurrent_gla"), naive("delta_rule.naive.delta_rule_recurrence")
    gated = naive("gated_delta_rule.naive.naive_recurrent_gated_delta_rule")
    rwkv6 = naive("rwkv6.recurrent_naive.naive_recurrent_rwkv6")
    forgetting = naive("forgetting_attn.naive.naive_forgetting_attn")

    def run_gla(q: Tensor, k: Tensor, v: Tensor, gk: Tensor, **_: Any) -> Any:
        return gla(q, k, v, gk)

    def run_delta(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, **_: Any) -> Any:
        o, state = delta(*(x.transpose(1, 2) for x in (unit(q), unit(k), v, beta)))
        return o.transpose(1, 2), state

    def run_gated(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, **more: Any) -> Any:
        decay = -more["A_log"].exp() * F.softplus(g + more["dt_bias"])
        return gated(unit(q), unit(k), v, beta.sigmoid(), decay, output_final_state=True)

    def run_rwkv6(r: Tensor, k: Tensor, v: Tensor, w: Tensor, u: Tensor, scale: float, **_: Any) -> Any:
        o, state = rwkv6(*(x.transpose(1, 2) for x in (r, k, v, w)), u, scale)
        return o.transpose(1, 2), state

    for layer, name, function in (
        ("gla", "fused_recurrent_gla", run_gla),
        ("hgrn2", "fused_recurrent_gla", lambda q, **more: run_gla(q * q.shape[-1] ** 0.5, **more)),
        ("delta_net", "fused_recurrent_delta_rule", run_delta),
        ("gated_deltanet", "fused_recurrent_gated_delta_rule", run_gated),
        ("rwkv6", "fused_recurrent_rwkv6", run_rwkv6),
        ("forgetting_attn", "parallel_forgetting_attn", lambda q, k, v, f, **_: forgetting(q, k, v, f)),
    ):
        setattr(importlib.import_module(f"fla.layers.{layer}"), name, function)
    hgrn2 = importlib.import_module("fla.layers.hgrn2")
    hgrn2.swish = F.silu
    hgrn2.rms_norm_linear = lambda x, weight, _b, linear, _c: (
        (x * (x.square().mean(dim=-1, keepdim=True) + 1e-5).rsqrt() * weight) @ linear.mT
    )
    importlib.import_module("fla.layers.rwkv6").token_shift = lambda x, _: F.pad(x, (0, 0, 1, -1)) - x


def layer(module: str, name: str, **options: Any) -> Any:
    """Build a layer in eval mode, of width 16 with two heads unless options say otherwise."""
    cls = getattr(importlib.import_module(f"fla.layers.{module}"), name)
    return cls(**{"hidden_size": 16, "num_heads": 2} | options).double().eval()


def convolutions(recorder: Recorder, *public: nn.Module) -> None:
    for ours, theirs in zip(recorder.ours.convolutions.values(), public, strict=True):
        put(theirs.weight, ours.weight.squeeze(2).flatten(1).mT)
        if theirs.bias is not None:
            put(theirs.bias, ours.bias)


def save_heads(recorder: Recorder, file: str, source: str, public: Any, names: str, reason: str = KERNELS) -> None:
    """Copy the linear maps, what else is named and the convolutions of queries, keys and values, if any, and save."""
    recorder.copy(public, f"{LINEARS} {names}")
    if hasattr(public, "q_conv1d"):
        convolutions(recorder, public.q_conv1d, public.k_conv1d, public.v_conv1d)
    recorder.save(file, source, public, 17, reason=reason)


def make_gla() -> None:
    for file, size in (("gla", 0), ("gla_conv", 4)):
        recorder = Recorder("gla", "CS", 24, 2, short_convolution=size, gate_rank=5)
        options = {"hidden_size": 24, "gate_low_rank_dim": 5, "use_short_conv": bool(size)}
        public = layer("gla", "GatedLinearAttention", **options)
        names = "gate_proj=g_proj norm_weight=g_norm_swish_gate.weight decay_map.0=gk_proj.0 decay_map.1=gk_proj.1"
        save_heads(recorder, file, SOURCE + "layers.gla.GatedLinearAttention", public, names)


def make_hgrn2() -> None:
    for file, index, size in (("hgrn2", 0, 0), ("hgrn2_third_layer", 2, 4)):
        recorder = Recorder("hgrn2", "CS", layer=(index, 4), short_convolution=size)
        public = layer("hgrn2", "HGRN2Attention", expand_ratio=8, use_short_conv=bool(size), layer_idx=index)
        recorder.copy(public, "q_proj k_proj=f_proj v_proj=i_proj out_proj=o_proj norm_weight=g_norm.weight")
        if size:
            convolutions(recorder, public.q_conv1d, public.f_conv1d, public.i_conv1d)
        bound = None if recorder.ours.bound is None else recorder.ours.bound.sigmoid().flatten()
        run = lambda x, public=public, bound=bound: public(x, lower_bound=bound)  # noqa: E731
        reason = KERNELS + "; its scale K^-1/2, which the paper does not have, is undone"
        recorder.save(file, SOURCE + "layers.hgrn2.HGRN2Attention", run, 13, reason=reason)


def make_deltanet() -> None:
    for file, size, negative in (("deltanet", 4, False), ("deltanet_plain", 0, True)):
        recorder = Recorder("deltanet", "CS", short_convolution=size, negative_eigenvalues=negative)
        public = layer("delta_net", "DeltaNet", use_short_conv=bool(size), allow_neg_eigval=negative)
        names = "strength_proj=b_proj norm_weight=o_norm.weight"
        save_heads(recorder, file, SOURCE + "layers.delta_net.DeltaNet", public, names)


GATED = SOURCE + "layers.gated_deltanet.GatedDeltaNet"
RATES = "step_proj.weight=a_proj.weight step_proj.bias=dt_bias log_rate=A_log norm_weight=o_norm.weight"


def make_gated_deltanet() -> None:
    recorder = Recorder("gated_deltanet", "CS").without_biases("strength_proj")
    public = layer("gated_deltanet", "GatedDeltaNet", head_dim=6, use_short_conv=True)
    public._use_fused_qkv_conv = lambda *_: False
    save_heads(recorder, "gated_deltanet", GATED, public, f"{RATES} strength_proj=b_proj gate_proj=g_proj")


def start_gated_deltanet() -> None:
    draw = partial(layer, "gated_deltanet", "GatedDeltaNet", hidden_size=64, num_heads=64, head_dim=6)
    names = "step_proj.bias=dt_bias step_proj.weight=a_proj.weight log_rate=A_log"
    save_start("gated_deltanet_start", GATED, "gated_deltanet", "CS", 64, 64, drawn(seeded(draw), names))


def make_rwkv6() -> None:
    recorder = Recorder("rwkv6", "CS", layer=(1, 4), mix_rank=4, decay_rank=5)
    public = layer("rwkv6", "RWKV6Attention", expand_k=1.0, proj_low_rank_dim=4, gate_low_rank_dim=5)
    ours = recorder.ours
    public.g_proj.linear = nn.Linear(16, 16, bias=False)
    theirs = [3, 0, 1, 2, 4]  # w, k, v, r, g here; r, w, k, v, g there
    put(public.x_proj[0].linear.weight, ours.mix_in.unflatten(1, (5, 4))[:, theirs].flatten(1).mT)
    put(public.x_proj[2].weight, ours.mix_out[theirs].transpose(0, 1).flatten(1).reshape(4, 5, 16).permute(2, 1, 0))
    put(public.x_bias, ours.mix[theirs])
    recorder.copy(public, "mix_of_mix=x_proj.0.mu q_proj=r_proj.linear k_proj=k_proj.linear v_proj=v_proj.linear")
    recorder.copy(public, "gate_proj=g_proj.linear out_proj=o_proj bonus decay=w_proj.linear.lora.2.bias")
    put(public.w_proj.linear.lora[0].weight, ours.decay_in.mT)
    put(public.w_proj.linear.lora[2].weight, ours.decay_out.mT)
    weight, bias = ours.norm_weight.flatten(), ours.norm_bias.flatten()
    public.gate_fn = F.silu
    public.g_norm.forward = lambda x: F.group_norm(x.flatten(0, 1), 2, weight, bias, eps=64e-5).view_as(x)
    reason = KERNELS + "; its low-rank gate replaced by a full map and its norm's epsilon by the released 64e-5"
    recorder.save("rwkv6", SOURCE + "layers.rwkv6.RWKV6Attention", public, 13, reason=reason)


def make_forgetting() -> None:
    recorder = Recorder("forgetting", "CS").without_biases("q_proj", "k_proj", "v_proj", "out_proj")
    public = layer("forgetting_attn", "ForgettingAttention")
    save_heads(recorder, "forgetting", SOURCE + "layers.forgetting_attn.ForgettingAttention", public, "forget=f_proj")


def make_based() -> None:
    module = importlib.import_module("fla.ops.based.naive")
    exact = load(Path(str(module.__file__)), {"1e-6": "0.0"}).naive_parallel_based
    recorder = Recorder("based", "CS", feature_dim=6)
    reason = "without the 1e-6 in its denominator; projections are torch's"
    recorder.save_core("based", SOURCE + "ops.based.naive.naive_parallel_based", exact, 17, reason=reason)
