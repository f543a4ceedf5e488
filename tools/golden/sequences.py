"""Recurrences, state spaces and decays: ``python -m tools.golden sequences FOLDER``.

FOLDER contains a checkout per repository, named OWNER+NAME; each function names repository and commit.
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tools.golden.record import Recorder, draws, load, pairs, projected, put, save_start, sequence_first

# --- decays ----------------------------------------------------------------------------------------------------------


def make_retention() -> None:
    root = "microsoft/torchscale/torchscale"
    names = {"RMSNorm": load(f"{root}/component/rms_norm.py").RMSNorm, "MultiwayWrapper": lambda _args, layer: layer}
    part = "def rotate_every_two", None
    module = load(f"{root}/component/multiscale_retention.py", part=part, names=names)
    args = SimpleNamespace(layernorm_eps=1e-6, decoder_embed_dim=16, decoder_retention_heads=2, recurrent_chunk_size=4)
    relative = load(f"{root}/architecture/retnet.py", part=("class RetNetRelPos", "\nclass ")).RetNetRelPos(args)
    recorder, public = Recorder("retention", "CS"), module.MultiScaleRetention(args, 16, 32, 2)
    order = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])  # it rotates neighbors, we the features i and i + K / 2
    ours = recorder.ours
    for theirs, own in ((public.q_proj, ours.q_proj), (public.k_proj, ours.k_proj)):
        put(theirs.weight, own.weight.unflatten(0, (2, 8))[:, order].flatten(0, 1))
    recorder.copy(public, "v_proj gate_proj=g_proj out_proj")

    def run(x: Tensor) -> Tensor:
        state: dict[str, Tensor] = {}
        outputs = []
        for t in range(x.shape[1]):
            step = relative(t + 1, activate_recurrent=True)
            outputs.append(public(x[:, t : t + 1], step, incremental_state=state))
        return torch.cat(outputs, dim=1)

    source = "microsoft/torchscale 4d1e0e8, MultiScaleRetention, token by token"
    recorder.save(source, run, 13, faint=None)
    names = "q_proj.weight k_proj.weight v_proj.weight gate_proj.weight=g_proj.weight out_proj.weight"
    found = draws(lambda: module.MultiScaleRetention(args, 16, 32, 2), names)
    save_start(source, "retention", "CS", 16, 2, statistics=found)


def make_lightning() -> None:
    root = "OpenNLPLab/lightning-attention"
    kernel = load(f"{root}/lightning_attn/ops/torch/linear_attention.py").linear_attn
    module = load(
        f"{root}/examples/module/tnl_attn.py",
        lightning_attn=SimpleNamespace(),
        lightning_attn__ops=SimpleNamespace(lightning_attn_func=kernel),
        lightning_attn__utils=load(f"{root}/lightning_attn/utils/utils.py"),
    )
    source, reason = f"{root} d15c385, TnlAttention", "its Triton kernel replaced by its linear_attn"
    for heads, index in ((2, 1), (3, 0)):
        recorder = Recorder("lightning", "CS", 24, heads, layer=(index, 4), variant="repository")
        public = module.TnlAttention(24, heads, layer_idx=index, num_layers=4)
        recorder.copy(public, "q_proj k_proj v_proj out_proj=o_proj gate_map.0=output_gate.0 gate_map.1=output_gate.1")
        public.norm.load_state_dict(recorder.ours.layer_norm.state_dict())
        recorder.save(source, public, 13, case=f"lightning_{heads}_heads", reason=reason)


TRANSNORMER: list[tuple[str, str, tuple[int, int] | None, dict[str, Any], dict[str, Any]]] = [
    ("norm_attention_cs", "CS", None, {"kernel": "elu", "positions": "lrpe"}, {"act_fun": "elu"}),
    ("norm_attention_ns", "NS", None, {"kernel": "elu1", "positions": "lrpe"}, {"act_fun": "1+elu"}),
    ("norm_attention_nc", "NC", None, {"kernel": "elu1"}, {"act_fun": "1+elu"}),
    ("diag_attention_rela", "CS", None, {"weights": "rela", "positions": "lrpe"}, {"use_softmax": False}),
    ("diag_attention_softmax", "CS", None, {"weights": "softmax", "positions": "lrpe"}, {"use_softmax": True}),
    ("diag_attention_ns", "NS", None, {"weights": "softmax"}, {"use_softmax": True}),
    ("transnormer_t1_early", "CS", (0, 4), {"positions": "lrpe"}, {"use_softmax": False}),
    ("transnormer_t1_late", "CS", (2, 4), {"positions": "lrpe"}, {"act_fun": "elu"}),
    ("transnormer_t2_early", "CS", (1, 4), {}, {"use_softmax": True}),
    ("transnormer_t2_late", "CS", (3, 4), {}, {"act_fun": "1+elu"}),
]
"""File, pattern, (index, layers), our options, and theirs: ``use_softmax`` is one of the local form."""


def make_transnormer() -> None:
    root = "OpenNLPLab/fairseq-evo/fairseq/modules"
    silent = {"print_params": lambda **_: None, "logging_info": lambda _: None}
    norms = {"ScaleNorm": None, "logger": SimpleNamespace(info=lambda _: None)}
    norms |= {x: getattr(load(f"{root}/norm/rms_norm.py"), x) for x in ("GatedRMSNorm", "RMSNorm", "SimpleRMSNorm")}
    helpers = load(f"{root}/helpers/helpers.py", part=("def get_activation_fn", None), names=norms)
    names = silent | {name: getattr(helpers, name) for name in ("get_norm_fn", "get_activation_fn")}
    names["Urpe"] = load(f"{root}/positional_encoding/urpe.py", part=("class Urpe", None), names=silent).Urpe
    shared = {"core_matrix": 1, "p_matrix": 3, "theta_learned": True, "theta_type": "a", "norm_type": "simplermsnorm"}
    for case, pattern, place, options, theirs in TRANSNORMER:
        name = case.rpartition("_")[0]
        sized = {} if name == "norm_attention" else {"block_size": 4}
        recorder = Recorder(name, pattern, layer=place, **options, **sized)
        ours = recorder.ours.form if place else recorder.ours
        turned, is_local = options.get("positions") == "lrpe", "use_softmax" in theirs
        kind = "Local" if is_local else "Linear"
        more = {"chunk_size": 4, "act_fun": "relu"} if is_local else {"has_out": True}
        path, part = f"{root}/x_attention/norm_{kind.lower()}_attention.py", (f"class Norm{kind}Attention", None)
        cls = getattr(load(path, part=part, names=names), f"Norm{kind}Attention")
        public = cls(16, 2, causal=pattern == "CS", use_urpe=turned, **shared, **more, **theirs)
        for own in ("q_proj", "k_proj", "v_proj", "out_proj"):
            getattr(public, own).load_state_dict(getattr(ours, own).state_dict())
        if turned:
            put(public.urpe.theta, ours.rotary.theta)
            put(public.urpe.v, ours.rotary.direction)
        run, lengths = sequence_first(projected(public)), (7, 9) if pattern == "NC" else (12,)
        recorder.save(f"OpenNLPLab/fairseq-evo 38fa81f, {cls.__name__}", run, *lengths, case=case, faint=None)


# --- state spaces ----------------------------------------------------------------------------------------------------


S4 = "state-spaces/s4 e757cef, S4Block with the DPLR kernel"


def s4_block(width: int, **options: Any) -> Any:
    module = load(
        "state-spaces/s4/models/s4/s4.py",
        pytorch_lightning=SimpleNamespace(),
        pytorch_lightning__utilities=SimpleNamespace(rank_zero_only=lambda f: f),
    )
    common = {"transposed": False, "final_act": None, "mode": "dplr", "d_state": 16, "n_ssm": width, "verbose": False}
    return module.S4Block(width, **common, **options)


def make_s4() -> None:
    for pattern in ("NS", "CS"):
        recorder = Recorder("s4", pattern, 8, 1, state_size=16, perturbation=0.1)
        public = s4_block(8, bidirectional=pattern == "NS", disc="bilinear", l_max=None).eval()

        def run(x: Tensor, recorder: Any = recorder, public: Any = public, kernel: Any = public.layer.kernel) -> Tensor:
            kernel.l_kernel.zero_()
            recorder.copy(kernel, "log_decay=A_real frequency=A_imag log_dt=inv_dt")
            conjugate = torch.tensor([1.0, -1.0])  # it has the other mode of each pair
            put(kernel.P, recorder.ours.low_rank * conjugate)
            put(kernel.B, recorder.ours.input * conjugate)
            put(kernel.C, recorder.ours.readout * conjugate)
            put(public.layer.D, recorder.ours.skip)
            return recorder.ours.out_proj(public(x)[0])

        reason = "without its last gate; the last map is torch's"
        recorder.save(S4, run, 17, case=f"s4_{pattern.lower()}", reason=reason)
    names = "log_decay=A_real frequency=A_imag log_dt=inv_dt"
    found = draws(lambda: s4_block(64, bidirectional=False).layer.kernel, names)
    save_start(S4, "s4", "CS", 64, 1, statistics=found, state_size=16)


def make_mamba3() -> None:
    """The module without its CUDA kernel, which the reference of its tests replaces."""
    part = "def mamba3_siso_step_ref", "def mamba3_siso_fwd_ref"
    step = load("state-spaces/mamba/tests/ops/triton/test_mamba3_siso.py", part=part).mamba3_siso_step_ref

    def combined(**inputs: Any) -> Tensor:
        return step(**{name: x for name, x in inputs.items() if isinstance(x, Tensor)})[0]

    norm = lambda width, eps, **_: nn.RMSNorm(width, eps)  # noqa: E731
    given = {"RMSNormGated": norm, "mamba3_siso_combined": combined}
    module = load("state-spaces/mamba/mamba_ssm/modules/mamba3.py", part=("class Mamba3", None), names=given).Mamba3
    recorder = Recorder("mamba3", "CS", state_size=12)
    with torch.no_grad():
        recorder.ours.rate_proj.weight[0] *= 30  # logits for which the rate is at its least
    public = module(16, d_state=12, headdim=16).double()
    names = ("gate", "v", "k", "q", "step", "rate", "share", "angle")
    recorder.copy(public, "+".join(f"{name}_proj.weight" for name in names) + "=in_proj.weight")
    own = "step_proj.bias=dt_bias key_bias=B_bias query_bias=C_bias key_norm=B_norm.weight query_norm=C_norm.weight "
    recorder.copy(public, own + "skip=D out_proj")
    source, reason = "state-spaces/mamba 5235bdc, Mamba3", "CUDA kernel replaced by mamba3_siso_step_ref of its tests"
    recorder.save(source, public, 17, reason=reason)
    own = "in_proj.weight step_proj.bias=dt_bias out_proj.weight key_bias=B_bias query_bias=C_bias "
    found = draws(lambda: module(64, d_state=12, headdim=2), own + "key_norm=B_norm.weight skip=D")
    start = of_input_map(found, names, (128, 128, 12, 12, 64, 64, 64, 3))
    save_start(source, "mamba3", "CS", 64, 64, statistics=start, state_size=12)


def of_input_map(found: dict[str, list[Tensor]], names: Sequence[str], sizes: Sequence[int]) -> dict[str, list[Tensor]]:
    """Put the parts of the input maps, by the names of our maps, in place of ``in_proj.weight``."""
    split = [x.split(list(sizes)) for x in found.pop("in_proj.weight")]
    return {f"{name}_proj.weight": [x[i] for x in split] for i, name in enumerate(names)} | found


def make_start_of_ssd() -> None:
    """The initial parameters of Mamba-2."""
    given = {"PyTorchModelHubMixin": object, "RMSNormGated": nn.RMSNorm}
    module = load("state-spaces/mamba/mamba_ssm/modules/mamba2.py", part=("class Mamba2", None), names=given).Mamba2
    names = "in_proj.weight step_proj.bias=dt_bias log_rate=A_log skip=D out_proj.weight "
    names += "convolutions.value.weight=conv1d.weight convolutions.value.bias=conv1d.bias"
    found = draws(lambda: module(64, d_state=12, headdim=2, rmsnorm=False), names)
    found |= {name: [x[:128] for x in drawn] for name, drawn in found.items() if name.startswith("convolutions")}
    start = of_input_map(found, ("gate", "v", "k", "q", "step"), (128, 128, 12, 12, 64))
    save_start("state-spaces/mamba e9594ce, Mamba2", "ssd", "CS", 64, 64, statistics=start, state_size=12)


def make_mlstm() -> None:
    """The layer without its Triton kernels, which the native step of the same authors replaces."""
    step = load("NX-AI/mlstm_kernels/mlstm_kernels/torch/recurrent/native_step.py")
    parts = load("NX-AI/xlstm/xlstm/xlstm_large/components.py")

    class Backend(nn.Module):
        def __init__(self, config: Any) -> None:  # noqa: ARG002
            super().__init__()

        def forward(self, q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, **_: Any) -> tuple[Tensor, None]:
            sizes = q.shape[0], q.shape[1], q.shape[3]
            state = q.new_zeros(*sizes, v.shape[-1]), q.new_zeros(sizes), q.new_zeros(*sizes[:2], 1)
            outputs = []
            for t in range(q.shape[2]):
                now = (*(x[:, :, t] for x in (q, k, v)), i[:, :, t, None], f[:, :, t, None])
                output, state = step.mlstm_recurrent_step__native_fw(*state, *now, dtype_state=torch.float64)
                outputs.append(output)
            return torch.stack(outputs, dim=2), None

    names = {"mLSTMBackend": Backend, "mLSTMBackendConfig": SimpleNamespace, "mLSTMLayerStateType": Any}
    names |= {name: getattr(parts, name) for name in ("soft_cap", "MultiHeadLayerNorm")}
    names |= {"dataclass": dataclass, "field": field, "WeightModeType": str}
    part = "@dataclass\nclass mLSTMLayerConfig", "\nclass mLSTMBlock"
    module = load("NX-AI/xlstm/xlstm/xlstm_large/model.py", part=part, names=names)
    public = module.mLSTMLayer(module.mLSTMLayerConfig(16, 2))
    recorder = Recorder("mlstm", "CS")
    with torch.no_grad():
        recorder.ours.input_proj.bias += 9.0  # open gates, whose normalizer is above and below 1
    recorder.copy(public, "q_proj=q k_proj=k v_proj=v gate_proj=ogate_preact norm_weight=multihead_norm.weight")
    recorder.copy(public, "input_proj=igate_preact forget_proj=fgate_preact out_proj")
    reason = "kernel replaced by native_step of NX-AI/mlstm_kernels 39d3c61"
    recorder.save("NX-AI/xlstm 032a6fb, mLSTMLayer of xlstm_large", public, 17, reason=reason)


# --- RWKV and the delta rule -----------------------------------------------------------------------------------------


def make_rwkv7() -> None:
    part, sizes = ("layer_norm = ", "def channel_mixing"), {"N_HEAD": 2, "HEAD_SIZE": 8}
    module = load("BlinkDL/RWKV-LM/RWKV-v7/rwkv_v7_numpy.py", part=part, names=sizes)
    recorder = Recorder("rwkv7", "CS", layer=(0, 4), decay_rank=3, rate_rank=4, gate_rank=5)
    ours = recorder.ours
    given = [*ours.mix, ours.decay, ours.bonus.flatten(), ours.decay_in, ours.decay_out, ours.rate_in, ours.rate_out]
    given += [ours.rate, ours.gate_in, ours.gate_out, ours.removed.flatten(), ours.replaced.flatten()]
    given += [linear.weight for linear in (ours.q_proj, ours.k_proj, ours.v_proj, ours.out_proj)]
    given += [ours.norm_weight.flatten(), ours.norm_bias.flatten()]
    params = [x.detach().numpy() for x in given]

    def run(x: Tensor) -> Tensor:
        rows = []
        for row in x.detach().numpy():
            before, state, outputs = np.zeros(16), np.zeros((2, 8, 8)), []
            for token in row:
                output, _, before, state = module.time_mixing(token, None, before, state, params)
                outputs.append(output)
            rows.append(np.stack(outputs))
        return torch.from_numpy(np.stack(rows))

    source = "BlinkDL/RWKV-LM 524481d, RWKV-v7/rwkv_v7_numpy.py, time_mixing of a first layer, token by token"
    recorder.save(source, run, 13, gradients=False, reason="numpy has no gradients")


RWKV = {
    "rwkv6": "mix_of_mix=time_maa_x mix_in=time_maa_w1 mix_out=time_maa_w2 decay=time_decay decay_in=time_decay_w1 "
    "decay_out=time_decay_w2 bonus=time_faaaa gate_proj.weight=gate.weight",
    "rwkv7": "decay=w0 decay_in=w1 decay_out=w2 rate=a0 rate_in=a1 rate_out=a2 gate_in=g1 gate_out=g2 removed=k_k "
    "replaced=k_a bonus=r_k",
}
RWKV_MIXES = {"rwkv6": [f"time_maa_{x}" for x in "wkvrg"], "rwkv7": [f"x_{x}" for x in "rwkvag"]}
RWKV_SHARED = "norm_weight=ln_x.weight norm_bias=ln_x.bias q_proj.weight=receptance.weight k_proj.weight=key.weight "
RWKV_SHARED += "v_proj.weight=value.weight out_proj.weight=output.weight"


def make_starts_of_rwkv() -> None:
    """The initial parameters of the third layer of four, after the draws of ``generate_init_weight``."""
    os.environ |= {"RWKV_FLOAT_MODE": "fp32", "RWKV_MY_TESTING": "", "RWKV_HEAD_L2WRAP_CE_CHUNK": "0"}
    sizes = {"n_layer": 4, "n_embd": 64, "dim_att": 64, "head_size": 16, "head_size_a": 16, "head_size_divisor": 8}
    args = SimpleNamespace(**sizes, my_testing="", accelerator="cpu")
    for name, version, cls in (("rwkv6", "RWKV-v5", "x060"), ("rwkv7", "RWKV-v7/train_temp", "x070")):
        path, base = f"BlinkDL/RWKV-LM/{version}/src/model.py", {"MyModule": nn.Module, "MyFunction": lambda f: f}
        layer = getattr(load(path, part=(f"class RWKV_Tmix_{cls}(", "\n#####"), names=base), f"RWKV_Tmix_{cls}")
        names = {"pl": SimpleNamespace(LightningModule=object), "os": os, "gc": gc}
        draw = load(path, part=("class RWKV(", None), names=names).RWKV.generate_init_weight
        found: dict[str, list[Tensor]] = defaultdict(list)
        public = [*pairs(f"{RWKV_SHARED} {RWKV[name]}"), *(("mix", mix) for mix in RWKV_MIXES[name])]
        for seed in range(32):
            torch.manual_seed(seed)
            module = layer(args, 2)
            state = {f"blocks.2.att.{key}": x for key, x in module.state_dict().items()}
            with contextlib.redirect_stdout(None), torch.no_grad():
                state = draw(SimpleNamespace(args=args, state_dict=state.copy))
            for own, theirs in public:
                found[own].append(state[f"blocks.2.att.{theirs}"])
        source = f"BlinkDL/RWKV-LM 524481d, {version}/src/model.py, RWKV_Tmix_{cls} and generate_init_weight"
        save_start(source, name, "CS", 64, 4, statistics=found, layer=(2, 4))


def start_gla_and_deltanet() -> None:
    """The initial parameters of GLA and DeltaNet, by the code of the time of the papers: commit 9ec376bb."""
    norm, present = lambda *_, **__: nn.Identity(), {"DeltaNet": None, "GatedLinearAttention": None}
    present |= {"FusedRMSNormSwishGate": norm, "RMSNorm": norm, "ACT2FN": {"swish": F.silu}}
    present["ShortConvolution"] = lambda width, size, **_: nn.Conv1d(width, width, size, groups=width, bias=False)
    maps = "q_proj k_proj v_proj out_proj=o_proj "
    for name, file, public, others in (
        ("gla", "gla", "GatedLinearAttention", "decay_map.0=gk_proj.0 decay_map.1=gk_proj.1 gate_proj=g_proj"),
        ("deltanet", "delta_net", "DeltaNet", "strength_proj=b_proj "),
    ):
        path = f"fla-org/flash-linear-attention/fla/layers/{file}.py"
        module = getattr(load(path, part=(f"class {public}", None), names=present), public)
        if name == "deltanet":
            others += " ".join(f"convolutions.{x}={x[0]}_conv1d" for x in ("query", "key", "value"))
        names = " ".join(f"{ours}.weight={theirs}.weight" for ours, theirs in pairs(maps + others))
        names += " decay_map.1.bias=gk_proj.1.bias" if name == "gla" else ""
        found = draws(partial(module, hidden_size=64, num_heads=4), names)
        source = f"fla-org/flash-linear-attention 9ec376bb, layers.{file}.{public}"
        save_start(source, name, "CS", 64, 4, statistics=found)
