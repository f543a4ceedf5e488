"""Layers of fla-org/flash-linear-attention, run as ``python -m tools.golden.make_fla CHECKOUT OLD``.

CHECKOUT is commit bc3b101. OLD is 9ec376bb, whose initialization is that of the papers.

The layers' own ``forward`` runs on the CPU. Their Triton kernels are replaced by the repository's ``naive`` functions
or, for convolutions and norms, by the equations of their documentation.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tools.golden.record import Recorder, in_double, load, part, put, save_start

SOURCE = "fla-org/flash-linear-attention bc3b101, "
KERNELS = "Triton kernels replaced by the repository's naive functions and by torch"


def gated_norm(module: Any, x: Tensor, gate: Tensor) -> Tensor:
    return norm(module, x) * F.silu(gate)


def norm(module: Any, x: Tensor) -> Tensor:
    return x * (x.square().mean(dim=-1, keepdim=True) + module.eps).rsqrt() * module.weight


def unit(x: Tensor) -> Tensor:
    return x * (x.square().sum(dim=-1, keepdim=True) + 1e-6).rsqrt()


def convolution(module: Any, x: Tensor, **_: Any) -> tuple[Tensor, None]:
    weight = module.weight
    padded = F.pad(x.mT, (weight.shape[-1] - 1, 0))
    output = F.conv1d(padded, weight, module.bias, groups=len(weight)).mT
    return F.silu(output) if module.activation else output, None


def patch() -> None:
    """Replace what needs a GPU."""
    modules = importlib.import_module("fla.modules")
    modules.FusedRMSNormGated.forward = gated_norm
    modules.RMSNorm.forward = norm
    modules.ShortConvolution.forward = convolution
    gla = importlib.import_module("fla.ops.gla.naive").naive_recurrent_gla
    delta = importlib.import_module("fla.ops.delta_rule.naive").delta_rule_recurrence
    gated = importlib.import_module("fla.ops.gated_delta_rule.naive").naive_recurrent_gated_delta_rule
    rwkv6 = importlib.import_module("fla.ops.rwkv6.recurrent_naive").naive_recurrent_rwkv6
    forgetting = importlib.import_module("fla.ops.forgetting_attn.naive").naive_forgetting_attn

    def run_gla(q: Tensor, k: Tensor, v: Tensor, gk: Tensor, **_: Any) -> Any:
        return gla(q, k, v, gk)

    def run_delta(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, **_: Any) -> Any:
        q, k = unit(q), unit(k)
        o, state = delta(*(x.transpose(1, 2) for x in (q, k, v, beta)))
        return o.transpose(1, 2), state

    def run_gated(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        A_log: Tensor,  # noqa: N803
        dt_bias: Tensor,
        **_: Any,
    ) -> Any:
        q, k = unit(q), unit(k)
        decay = -A_log.exp() * F.softplus(g + dt_bias)
        return gated(q, k, v, beta.sigmoid(), decay, output_final_state=True)

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
    return getattr(importlib.import_module(f"fla.layers.{module}"), name)(**options).double().eval()


def convolutions(recorder: Recorder, *public: nn.Module) -> None:
    for ours, theirs in zip(recorder.ours.convolutions.values(), public, strict=True):
        put(theirs.weight, ours.weight.squeeze(2).flatten(1).mT)
        if theirs.bias is not None:
            put(theirs.bias, ours.bias)


def make_gla() -> None:
    for file, size in (("gla", 0), ("gla_conv", 4)):
        recorder = Recorder("gla", "CS", 24, 2, short_convolution=size, gate_rank=5)
        public = layer(
            "gla", "GatedLinearAttention", hidden_size=24, num_heads=2, gate_low_rank_dim=5, use_short_conv=bool(size)
        )
        recorder.linears(q_proj=public.q_proj, k_proj=public.k_proj, v_proj=public.v_proj, out_proj=public.o_proj)
        recorder.linears(gate_proj=public.g_proj, **{f"decay_map.{i}": public.gk_proj[i] for i in (0, 1)})
        put(public.g_norm_swish_gate.weight, recorder.ours.norm_weight)
        if size:
            convolutions(recorder, public.q_conv1d, public.k_conv1d, public.v_conv1d)
        source = SOURCE + "layers.gla.GatedLinearAttention"
        recorder.save(file, source, lambda x, public=public: public(x)[0], recorder.inputs(17), reason=KERNELS)


def make_hgrn2() -> None:
    for file, index, size in (("hgrn2", 0, 0), ("hgrn2_third_layer", 2, 4)):
        recorder = Recorder("hgrn2", "CS", 16, 2, layer=(index, 4), short_convolution=size)
        public = layer(
            "hgrn2",
            "HGRN2Attention",
            hidden_size=16,
            num_heads=2,
            expand_ratio=8,
            use_short_conv=bool(size),
            layer_idx=index,
        )
        recorder.linears(q_proj=public.q_proj, k_proj=public.f_proj, v_proj=public.i_proj, out_proj=public.o_proj)
        put(public.g_norm.weight, recorder.ours.norm_weight)
        if size:
            convolutions(recorder, public.q_conv1d, public.f_conv1d, public.i_conv1d)
        bound = None if recorder.ours.bound is None else recorder.ours.bound.sigmoid().flatten()
        recorder.save(
            file,
            SOURCE + "layers.hgrn2.HGRN2Attention",
            lambda x, public=public, bound=bound: public(x, lower_bound=bound)[0],
            recorder.inputs(13),
            reason=KERNELS + "; its scale K^-1/2, which the paper does not have, is undone",
        )


def make_deltanet() -> None:
    for file, size, negative in (("deltanet", 4, False), ("deltanet_plain", 0, True)):
        recorder = Recorder("deltanet", "CS", 16, 2, short_convolution=size, negative_eigenvalues=negative)
        public = layer(
            "delta_net",
            "DeltaNet",
            hidden_size=16,
            num_heads=2,
            use_short_conv=bool(size),
            allow_neg_eigval=negative,
        )
        recorder.linears(q_proj=public.q_proj, k_proj=public.k_proj, v_proj=public.v_proj, out_proj=public.o_proj)
        recorder.linears(strength_proj=public.b_proj)
        put(public.o_norm.weight, recorder.ours.norm_weight)
        if size:
            convolutions(recorder, public.q_conv1d, public.k_conv1d, public.v_conv1d)
        recorder.save(
            file,
            SOURCE + "layers.delta_net.DeltaNet",
            lambda x, public=public: public(x)[0],
            recorder.inputs(17),
            reason=KERNELS,
        )


def make_gated_deltanet() -> None:
    recorder = Recorder("gated_deltanet", "CS", 16, 2)
    recorder.without_biases("strength_proj")
    public = layer("gated_deltanet", "GatedDeltaNet", hidden_size=16, num_heads=2, head_dim=6, use_short_conv=True)
    recorder.linears(q_proj=public.q_proj, k_proj=public.k_proj, v_proj=public.v_proj, out_proj=public.o_proj)
    recorder.linears(strength_proj=public.b_proj, gate_proj=public.g_proj)
    put(public.a_proj.weight, recorder.ours.step_proj.weight)
    put(public.dt_bias, recorder.ours.step_proj.bias)
    put(public.A_log, recorder.ours.log_rate)
    put(public.o_norm.weight, recorder.ours.norm_weight)
    convolutions(recorder, public.q_conv1d, public.k_conv1d, public.v_conv1d)
    public._use_fused_qkv_conv = lambda *_: False
    source = SOURCE + "layers.gated_deltanet.GatedDeltaNet"
    recorder.save("gated_deltanet", source, lambda x: public(x)[0], recorder.inputs(17), reason=KERNELS)


def make_rwkv6() -> None:
    recorder = Recorder("rwkv6", "CS", 16, 2, layer=(1, 4), mix_rank=4, decay_rank=5)
    public = layer(
        "rwkv6", "RWKV6Attention", hidden_size=16, num_heads=2, expand_k=1.0, proj_low_rank_dim=4, gate_low_rank_dim=5
    )
    ours = recorder.ours
    public.g_proj.linear = nn.Linear(16, 16, bias=False)
    order = [0, 1, 2, 3, 4]  # w, k, v, r, g here; r, w, k, v, g there
    theirs = [order[i] for i in (3, 0, 1, 2, 4)]
    put(public.x_proj[0].mu, ours.mix_of_mix)
    mixes = ours.mix_in.unflatten(1, (5, 4))[:, theirs].flatten(1)
    put(public.x_proj[0].linear.weight, mixes.mT)
    put(public.x_proj[2].weight, ours.mix_out[theirs].transpose(0, 1).flatten(1).reshape(4, 5, 16).permute(2, 1, 0))
    put(public.x_bias, ours.mix[theirs])
    recorder.linears(q_proj=public.r_proj.linear, k_proj=public.k_proj.linear, v_proj=public.v_proj.linear)
    recorder.linears(gate_proj=public.g_proj.linear, out_proj=public.o_proj)
    put(public.w_proj.linear.lora[0].weight, ours.decay_in.mT)
    put(public.w_proj.linear.lora[2].weight, ours.decay_out.mT)
    put(public.w_proj.linear.lora[2].bias, ours.decay)
    put(public.bonus, ours.bonus)
    weight, bias = ours.norm_weight.flatten(), ours.norm_bias.flatten()
    public.gate_fn = F.silu
    public.g_norm.forward = lambda x: F.group_norm(x.flatten(0, 1), 2, weight, bias, eps=64e-5).view_as(x)
    recorder.save(
        "rwkv6",
        SOURCE + "layers.rwkv6.RWKV6Attention",
        lambda x: public(x)[0],
        recorder.inputs(13),
        reason=KERNELS + "; its low-rank gate replaced by a full map and its norm's epsilon by the released 64e-5",
    )


def make_forgetting() -> None:
    recorder = Recorder("forgetting", "CS", 16, 2)
    recorder.without_biases("q_proj", "k_proj", "v_proj", "out_proj")
    public = layer("forgetting_attn", "ForgettingAttention", hidden_size=16, num_heads=2)
    recorder.linears(q_proj=public.q_proj, k_proj=public.k_proj, v_proj=public.v_proj, out_proj=public.o_proj)
    recorder.linears(forget=public.f_proj)
    source = SOURCE + "layers.forgetting_attn.ForgettingAttention"
    recorder.save("forgetting", source, lambda x: public(x)[0], recorder.inputs(17), reason=KERNELS)


def heads(module: Any, x: Tensor) -> tuple[Tensor, ...]:
    """Project with plain linear maps, for functions that have no layer on a CPU."""
    return tuple(module.split_heads(linear(x)) for linear in (module.q_proj, module.k_proj, module.v_proj))


def exact_denominator(module: Any) -> Any:
    """Load the functions again without the constant in the denominator."""
    return load(Path(module.__file__), {"1e-6": "0.0"}).naive_parallel_based


def make_based() -> None:
    naive = exact_denominator(importlib.import_module("fla.ops.based.naive"))
    recorder = Recorder("based", "CS", 16, 2, feature_dim=6)
    ours = recorder.ours

    def public(x: Tensor) -> Tensor:
        return ours.out_proj(ours.merge_heads(naive(*heads(ours, x))))

    recorder.save(
        "based",
        SOURCE + "ops.based.naive.naive_parallel_based",
        public,
        recorder.inputs(17),
        reason="without the 1e-6 in its denominator; projections are torch's",
    )


def make_starts() -> None:
    """Initial decays of Gated DeltaNet."""
    drawn = []
    for seed in range(32):
        torch.manual_seed(seed)
        drawn.append(layer("gated_deltanet", "GatedDeltaNet", hidden_size=64, num_heads=64, head_dim=6))
    save_start(
        "gated_deltanet_start",
        SOURCE + "layers.gated_deltanet.GatedDeltaNet",
        "gated_deltanet",
        "CS",
        64,
        64,
        {
            "step_proj.bias": [x.dt_bias for x in drawn],
            "step_proj.weight": [x.a_proj.weight for x in drawn],
            "log_rate": [x.A_log for x in drawn],
        },
    )


def make_old_starts(layers: Path) -> None:
    """The initial parameters of GLA and DeltaNet, by the code of the time of the papers."""
    norm, present = lambda *_, **__: nn.Identity(), {"DeltaNet": None, "GatedLinearAttention": None}
    present |= {"FusedRMSNormSwishGate": norm, "RMSNorm": norm, "ACT2FN": {"swish": F.silu}, "Optional": Any}
    present["ShortConvolution"] = lambda width, size, **_: nn.Conv1d(width, width, size, groups=width, bias=False)
    linears = {"q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "out_proj": "o_proj"}
    for name, file, public, others in (
        ("gla", "gla", "GatedLinearAttention", {"decay_map.0": "gk_proj.0", "decay_map.1": "gk_proj.1"}),
        ("deltanet", "delta_net", "DeltaNet", {"strength_proj": "b_proj"}),
    ):
        module = part(layers / f"{file}.py", f"class {public}", None, **present)[public]
        drawn = [module(hidden_size=64, num_heads=4).state_dict() for _ in range(32)]
        names = linears | others | ({"gate_proj": "g_proj"} if name == "gla" else {})
        names |= {f"convolutions.{x}": f"{x[0]}_conv1d" for x in ("query", "key", "value") if name == "deltanet"}
        start = {f"{ours}.weight": [x[f"{theirs}.weight"] for x in drawn] for ours, theirs in names.items()}
        if name == "gla":
            start["decay_map.1.bias"] = [x["gk_proj.1.bias"] for x in drawn]
        source = f"fla-org/flash-linear-attention 9ec376bb, layers.{file}.{public}"
        save_start(f"{name}_start", source, name, "CS", 64, 4, start)


def main(checkout: Path, old: Path) -> None:
    sys.path.insert(0, str(checkout))
    patch()
    with in_double():
        for make in (make_gla, make_hgrn2, make_deltanet, make_gated_deltanet, make_rwkv6, make_forgetting):
            make()
        make_based()
    make_starts()
    make_old_starts(old / "fla" / "layers")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
