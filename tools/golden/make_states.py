"""Layers with a matrix state: ``python -m tools.golden.make_states FOLDER``.

FOLDER contains a checkout per repository, named OWNER+NAME; each function names repository and commit.
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

import torch
from einops import rearrange, repeat
from torch import Tensor, nn

from tools.golden.record import Recorder, load, part, put, record_all, save_start


def make_mamba3(folder: Path) -> None:
    """The module without its CUDA kernel, which the reference of its tests replaces."""
    root = folder / "state-spaces+mamba"
    step = part(
        root / "tests" / "ops" / "triton" / "test_mamba3_siso.py",
        "def mamba3_siso_step_ref",
        "def mamba3_siso_fwd_ref",
        **{"Optional": Optional, "Tuple": tuple, "repeat": repeat},
    )["mamba3_siso_step_ref"]

    class Norm(nn.Module):
        def __init__(self, width: int, eps: float, **_: Any) -> None:
            super().__init__()
            self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

        def forward(self, x: Tensor) -> Tensor:
            return x * (x.square().mean(dim=-1, keepdim=True) + self.eps).rsqrt() * self.weight

    def combined(**inputs: Any) -> Tensor:
        return step(**{name: x for name, x in inputs.items() if isinstance(x, Tensor)})[0]

    module = part(
        root / "mamba_ssm" / "modules" / "mamba3.py",
        "class Mamba3",
        None,
        **{"rearrange": rearrange, "RMSNormGated": Norm, "mamba3_siso_combined": combined},
    )["Mamba3"]
    recorder = Recorder("mamba3", "CS", 16, 2, state_size=12)
    ours = recorder.ours
    with torch.no_grad():
        ours.rate_proj.weight[0] *= 30  # logits for which the rate is at its least
    public = module(16, d_state=12, headdim=16).double()
    names = ("gate", "v", "k", "q", "step", "rate", "share", "angle")
    put(public.in_proj.weight, torch.cat([getattr(ours, f"{name}_proj").weight for name in names]))
    put(public.dt_bias, ours.step_proj.bias)
    for theirs, own in (
        (public.B_bias, ours.key_bias),
        (public.C_bias, ours.query_bias),
        (public.B_norm.weight, ours.key_norm),
        (public.C_norm.weight, ours.query_norm),
        (public.D, ours.skip),
    ):
        put(theirs, own)
    recorder.linears(out_proj=public.out_proj)
    source = "state-spaces/mamba 5235bdc, Mamba3"
    reason = "CUDA kernel replaced by mamba3_siso_step_ref of its tests"
    recorder.save("mamba3", source, public, recorder.inputs(17), reason=reason)
    drawn = [module(64, d_state=12, headdim=2) for _ in range(32)]
    split = [[*x.in_proj.weight.split([128, 128, 12, 12, 64, 64, 64, 3])] for x in drawn]
    start = {f"{name}_proj.weight": [x[i] for x in split] for i, name in enumerate(names)}
    start |= {"step_proj.bias": [x.dt_bias for x in drawn], "out_proj.weight": [x.out_proj.weight for x in drawn]}
    start |= {"key_bias": [x.B_bias for x in drawn], "query_bias": [x.C_bias for x in drawn]}
    start |= {"key_norm": [x.B_norm.weight for x in drawn], "skip": [x.D for x in drawn]}
    save_start("mamba3_start", source, "mamba3", "CS", 64, 64, start, state_size=12)


def make_start_of_ssd(folder: Path) -> None:
    """The initial parameters of Mamba-2."""
    module = part(
        folder / "state-spaces+mamba" / "mamba_ssm" / "modules" / "mamba2.py",
        "class Mamba2",
        None,
        **{"PyTorchModelHubMixin": object, "RMSNormGated": nn.RMSNorm, "rearrange": rearrange},
    )["Mamba2"]
    drawn = [module(64, d_state=12, headdim=2, rmsnorm=False) for _ in range(32)]
    names, sizes = ("gate", "v", "k", "q", "step"), (128, 128, 12, 12, 64)
    split = [x.in_proj.weight.split(sizes) for x in drawn]
    start = {f"{name}_proj.weight": [x[i] for x in split] for i, name in enumerate(names)}
    start |= {"step_proj.bias": [x.dt_bias for x in drawn], "log_rate": [x.A_log for x in drawn]}
    start |= {"skip": [x.D for x in drawn], "out_proj.weight": [x.out_proj.weight for x in drawn]}
    start["convolutions.value.weight"] = [x.conv1d.weight[:128] for x in drawn]
    start["convolutions.value.bias"] = [x.conv1d.bias[:128] for x in drawn]
    source = "state-spaces/mamba e9594ce, Mamba2"
    save_start("ssd_start", source, "ssd", "CS", 64, 64, start, state_size=12)


def make_mlstm(folder: Path) -> None:
    """The layer without its Triton kernels, which the native step of the same authors replaces."""
    step = load(folder / "NX-AI+mlstm_kernels" / "mlstm_kernels" / "torch" / "recurrent" / "native_step.py")
    parts = load(folder / "NX-AI+xlstm" / "xlstm" / "xlstm_large" / "components.py")

    class Backend(nn.Module):
        def __init__(self, _config: Any) -> None:
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
    source = folder / "NX-AI+xlstm" / "xlstm" / "xlstm_large" / "model.py"
    module = part(source, "@dataclass\nclass mLSTMLayerConfig", "\nclass mLSTMBlock", **names)
    public = module["mLSTMLayer"](module["mLSTMLayerConfig"](16, 2))
    recorder = Recorder("mlstm", "CS", 16, 2)
    with torch.no_grad():
        recorder.ours.input_proj.bias += 9.0  # open gates, whose normalizer is above and below 1
    recorder.linears(q_proj=public.q, k_proj=public.k, v_proj=public.v, gate_proj=public.ogate_preact)
    recorder.linears(input_proj=public.igate_preact, forget_proj=public.fgate_preact, out_proj=public.out_proj)
    put(public.multihead_norm.weight, recorder.ours.norm_weight)
    recorder.save(
        "mlstm",
        "NX-AI/xlstm 032a6fb, mLSTMLayer of xlstm_large",
        lambda x: public(x)[0],
        recorder.inputs(17),
        reason="kernel replaced by native_step of NX-AI/mlstm_kernels 39d3c61",
    )


RWKV = {
    "rwkv6": {
        "mix_of_mix": ["time_maa_x"],
        "mix": [f"time_maa_{x}" for x in "wkvrg"],
        "mix_in": ["time_maa_w1"],
        "mix_out": ["time_maa_w2"],
        "decay": ["time_decay"],
        "decay_in": ["time_decay_w1"],
        "decay_out": ["time_decay_w2"],
        "bonus": ["time_faaaa"],
        "gate_proj.weight": ["gate.weight"],
    },
    "rwkv7": {
        "mix": [f"x_{x}" for x in "rwkvag"],
        "decay": ["w0"],
        "decay_in": ["w1"],
        "decay_out": ["w2"],
        "rate": ["a0"],
        "rate_in": ["a1"],
        "rate_out": ["a2"],
        "gate_in": ["g1"],
        "gate_out": ["g2"],
        "removed": ["k_k"],
        "replaced": ["k_a"],
        "bonus": ["r_k"],
    },
}
RWKV_LINEAR = {"q_proj": "receptance", "k_proj": "key", "v_proj": "value", "out_proj": "output"}


def make_starts_of_rwkv(folder: Path) -> None:
    """The initial parameters of the third layer of four, after the draws of ``generate_init_weight``."""
    os.environ |= {"RWKV_FLOAT_MODE": "fp32", "RWKV_MY_TESTING": "", "RWKV_HEAD_L2WRAP_CE_CHUNK": "0"}
    sizes = {"n_layer": 4, "n_embd": 64, "dim_att": 64, "head_size": 16, "head_size_a": 16, "head_size_divisor": 8}
    args = SimpleNamespace(**sizes, my_testing="", accelerator="cpu")
    for name, version, cls in (("rwkv6", "RWKV-v5", "x060"), ("rwkv7", "RWKV-v7/train_temp", "x070")):
        path = folder / "BlinkDL+RWKV-LM" / version / "src" / "model.py"
        layer = part(path, f"class RWKV_Tmix_{cls}(", "\n#####", MyModule=nn.Module, MyFunction=lambda f: f)
        names = {"pl": SimpleNamespace(LightningModule=object), "os": os, "gc": gc}
        draw = part(path, "class RWKV(", None, **names)["RWKV"].generate_init_weight
        found: dict[str, list[Tensor]] = defaultdict(list)
        public = {"norm_weight": ["ln_x.weight"], "norm_bias": ["ln_x.bias"]} | RWKV[name]
        public |= {f"{own}.weight": [f"{theirs}.weight"] for own, theirs in RWKV_LINEAR.items()}
        for seed in range(32):
            torch.manual_seed(seed)
            module = layer[f"RWKV_Tmix_{cls}"](args, 2)
            state = {f"blocks.2.att.{key}": x for key, x in module.state_dict().items()}
            with contextlib.redirect_stdout(None), torch.no_grad():
                state = draw(SimpleNamespace(args=args, state_dict=state.copy))
            for own, theirs in public.items():
                found[own] += [state[f"blocks.2.att.{key}"] for key in theirs]
        source = f"BlinkDL/RWKV-LM 524481d, {version}/src/model.py, RWKV_Tmix_{cls} and generate_init_weight"
        save_start(f"{name}_start", source, name, "CS", 64, 4, found, layer=(2, 4))


if __name__ == "__main__":
    record_all(globals())
