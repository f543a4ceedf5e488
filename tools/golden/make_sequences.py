"""Recurrences and state spaces: ``python -m tools.golden.make_sequences FOLDER``.

FOLDER contains a checkout per repository, named OWNER+NAME; each function names repository and commit.
"""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

import numpy as np
import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn import functional as F

from tools.golden.record import Recorder, load, part, put, record_all, save_start


def make_retention(folder: Path) -> None:
    root = folder / "microsoft+torchscale" / "torchscale"
    norm = load(root / "component" / "rms_norm.py")
    module = part(
        root / "component" / "multiscale_retention.py",
        "def rotate_every_two",
        None,
        RMSNorm=norm.RMSNorm,
        MultiwayWrapper=lambda _args, layer: layer,
    )
    positions = part(root / "architecture" / "retnet.py", "class RetNetRelPos", "\nclass ")["RetNetRelPos"]
    recorder = Recorder("retention", "CS", 16, 2)
    args = SimpleNamespace(layernorm_eps=1e-6, decoder_embed_dim=16, decoder_retention_heads=2, recurrent_chunk_size=4)
    public = module["MultiScaleRetention"](args, 16, 32, 2)
    order = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])  # it rotates neighbors, we the features i and i + K / 2
    ours = recorder.ours
    for theirs, own in ((public.q_proj, ours.q_proj), (public.k_proj, ours.k_proj)):
        put(theirs.weight, own.weight.unflatten(0, (2, 8))[:, order].flatten(0, 1))
    recorder.linears(v_proj=public.v_proj, gate_proj=public.g_proj, out_proj=public.out_proj)
    relative = positions(args)

    def run(x: Tensor) -> Tensor:
        state: dict[str, Tensor] = {}
        outputs = []
        for t in range(x.shape[1]):
            step = relative(t + 1, activate_recurrent=True)
            outputs.append(public(x[:, t : t + 1], step, incremental_state=state))
        return torch.cat(outputs, dim=1)

    source = "microsoft/torchscale 4d1e0e8, MultiScaleRetention, token by token"
    recorder.save("retention", source, run, recorder.inputs(13, faint=None))
    drawn = [module["MultiScaleRetention"](args, 16, 32, 2) for _ in range(32)]
    names = {"q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "g_proj": "gate_proj", "out_proj": "out_proj"}
    statistics = {f"{ours}.weight": [getattr(x, theirs).weight for x in drawn] for theirs, ours in names.items()}
    save_start("retention_start", source, "retention", "CS", 16, 2, statistics)


def make_rwkv7(folder: Path) -> None:
    root = folder / "BlinkDL+RWKV-LM" / "RWKV-v7"
    module = part(root / "rwkv_v7_numpy.py", "layer_norm = ", "def channel_mixing", N_HEAD=2, HEAD_SIZE=8)
    recorder = Recorder("rwkv7", "CS", 16, 2, layer=(0, 4), decay_rank=3, rate_rank=4, gate_rank=5)
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
                output, _, before, state = module["time_mixing"](token, None, before, state, params)
                outputs.append(output)
            rows.append(np.stack(outputs))
        return torch.from_numpy(np.stack(rows))

    source = "BlinkDL/RWKV-LM 524481d, RWKV-v7/rwkv_v7_numpy.py, time_mixing of a first layer, token by token"
    recorder.save("rwkv7", source, run, recorder.inputs(13), gradients=False, reason="numpy has no gradients")


def make_lightning(folder: Path) -> None:
    root = folder / "OpenNLPLab+lightning-attention"
    attention = load(root / "lightning_attn" / "ops" / "torch" / "linear_attention.py")
    slopes = load(root / "lightning_attn" / "utils" / "utils.py")
    module = load(
        root / "examples" / "module" / "tnl_attn.py",
        lightning_attn=SimpleNamespace(),
        lightning_attn__ops=SimpleNamespace(lightning_attn_func=attention.linear_attn),
        lightning_attn__utils=slopes,
    )
    for heads, index in ((2, 1), (3, 0)):
        recorder = Recorder("lightning", "CS", 24, heads, layer=(index, 4), config_variant="repository")
        public = module.TnlAttention(24, heads, layer_idx=index, num_layers=4)
        ours = recorder.ours
        recorder.linears(q_proj=public.q_proj, k_proj=public.k_proj, v_proj=public.v_proj, out_proj=public.o_proj)
        recorder.linears(**{f"gate_map.{i}": public.output_gate[i] for i in (0, 1)})
        public.norm.load_state_dict(ours.layer_norm.state_dict())
        recorder.save(
            f"lightning_{heads}_heads",
            "OpenNLPLab/lightning-attention d15c385, TnlAttention",
            public,
            recorder.inputs(13),
            reason="its Triton kernel replaced by its linear_attn",
        )


def make_linear(folder: Path) -> None:
    root = folder / "idiap+fast-transformers" / "fast_transformers"
    features = load(root / "feature_maps" / "base.py")
    found = part(
        root / "attention" / "linear_attention.py",
        "class LinearAttention",
        "\n# Register",
        Module=nn.Module,
        EventDispatcher=SimpleNamespace(get=lambda _: None),
    )
    elu = features.ActivationFunctionFeatureMap.factory(lambda x: F.elu(x) + 1)
    for pattern, lengths in (("NS", (13,)), ("NC", (7, 13))):
        recorder = Recorder("linear", pattern, 16, 2)
        ours = recorder.ours
        public = found["LinearAttention"](8, feature_map=elu, eps=0.0)

        def run(x: Tensor, source: Tensor | None = None, public: Any = public, ours: Any = ours) -> Tensor:
            source = x if source is None else source
            q, k, v = (
                linear(y).unflatten(-1, (2, 8))
                for linear, y in ((ours.q_proj, x), (ours.k_proj, source), (ours.v_proj, source))
            )
            whole = SimpleNamespace(all_ones=True)
            count = SimpleNamespace(float_matrix=torch.ones(source.shape[:2]))
            return ours.out_proj(public(q, k, v, whole, None, count).flatten(2))

        recorder.save(
            f"linear_{pattern.lower()}",
            "idiap/fast-transformers 2ad36b9, LinearAttention",
            run,
            recorder.inputs(*lengths),
            reason="with eps of 0; projections are torch's",
        )


def make_sigmoid(folder: Path) -> None:
    root = folder / "apple+ml-sigmoid-attention" / "attention_simulator" / "src" / "attention_simulator" / "layers"
    module = load(
        root / "attention.py",
        attention_simulator=SimpleNamespace(),
        attention_simulator__layers=SimpleNamespace(),
        attention_simulator__layers__position_embedding=SimpleNamespace(alibi=None, apply_rotary_emb=None),
    )
    recorder = Recorder("sigmoid", "NS", 16, 2)
    ours = recorder.ours
    public = module.Attention(16, torch.sigmoid, num_heads=2, bias=True, attn_bias=-math.log(13))
    maps = (ours.q_proj, ours.k_proj, ours.v_proj)
    put(public.qkv.weight, torch.cat([linear.weight for linear in maps]))
    put(public.qkv.bias, torch.cat([linear.bias for linear in maps]))
    recorder.linears(out_proj=public.proj)
    source = "apple/ml-sigmoid-attention 9273b49, Attention with a bias of -ln n"
    recorder.save("sigmoid", source, lambda x: public(x)["attn_proj"], recorder.inputs(13))


def make_transnormer(folder: Path) -> None:
    root = folder / "OpenNLPLab+fairseq-evo" / "fairseq" / "modules"
    silent = {"print_params": lambda **_: None, "logging_info": lambda _: None}
    helpers = part(root / "helpers" / "helpers.py", "def get_activation_fn", None, logger=SimpleNamespace(info=print))
    helpers["logger"] = SimpleNamespace(info=lambda _: None)
    norm = load(root / "norm" / "rms_norm.py")
    for name in ("GatedRMSNorm", "RMSNorm", "SimpleRMSNorm"):
        helpers[name] = getattr(norm, name)
    helpers["ScaleNorm"] = None
    urpe = part(root / "positional_encoding" / "urpe.py", "class Urpe", None, **silent)["Urpe"]
    names = {
        **silent,
        "Dict": dict,
        "Optional": Optional,
        "Tuple": tuple,
        "Tensor": Tensor,
        "Parameter": nn.Parameter,
        "rearrange": rearrange,
        "quant_noise": lambda layer, *_: layer,
        "FairseqDropout": lambda *_, **__: nn.Identity(),
        "get_norm_fn": helpers["get_norm_fn"],
        "get_activation_fn": helpers["get_activation_fn"],
        "Urpe": urpe,
    }
    text = {"linear": "class NormLinearAttention", "local": "class NormLocalAttention"}
    linear = part(root / "x_attention" / "norm_linear_attention.py", text["linear"], None, **names)
    local = part(root / "x_attention" / "norm_local_attention.py", text["local"], None, **names)
    shared = {"core_matrix": 1, "p_matrix": 3, "theta_learned": True, "theta_type": "a"}
    source = "OpenNLPLab/fairseq-evo 38fa81f, "
    cases: list[tuple[str, str, str, tuple[int, int] | None, dict[str, Any]]] = [
        ("norm_attention_cs", "norm_attention", "CS", None, {"kernel": "elu", "positions": "lrpe"}),
        ("norm_attention_ns", "norm_attention", "NS", None, {"kernel": "elu1", "positions": "lrpe"}),
        ("norm_attention_nc", "norm_attention", "NC", None, {"kernel": "elu1"}),
        ("diag_attention_rela", "diag_attention", "CS", None, {"weights": "rela", "positions": "lrpe"}),
        ("diag_attention_softmax", "diag_attention", "CS", None, {"weights": "softmax", "positions": "lrpe"}),
        ("diag_attention_ns", "diag_attention", "NS", None, {"weights": "softmax"}),
        ("transnormer_t1_early", "transnormer_t1", "CS", (0, 4), {"positions": "lrpe"}),
        ("transnormer_t1_late", "transnormer_t1", "CS", (2, 4), {"positions": "lrpe"}),
        ("transnormer_t2_early", "transnormer_t2", "CS", (1, 4), {}),
        ("transnormer_t2_late", "transnormer_t2", "CS", (3, 4), {}),
    ]
    for file, name, pattern, place, options in cases:
        is_local = name == "diag_attention" or file.endswith("early")
        sized = name == "diag_attention" or name.startswith("transnormer")
        recorder = Recorder(name, pattern, 16, 2, layer=place, **options, **({"block_size": 4} if sized else {}))
        ours = recorder.ours.form if place else recorder.ours
        turned = options.get("positions") == "lrpe"
        causal = pattern == "CS"
        if is_local:
            softmax = options.get("weights") == "softmax" or name == "transnormer_t2"
            public = local["NormLocalAttention"](
                16,
                2,
                causal=causal,
                use_urpe=turned,
                chunk_size=4,
                use_softmax=softmax,
                act_fun="relu",
                norm_type="simplermsnorm",
                **shared,
            )
        else:
            kernel = options.get("kernel") or {"transnormer_t1": "elu", "transnormer_t2": "elu1"}[name]
            public = linear["NormLinearAttention"](
                16,
                2,
                causal=causal,
                has_out=True,
                use_urpe=turned,
                act_fun={"elu": "elu", "elu1": "1+elu"}[kernel],
                norm_type="simplermsnorm",
                **shared,
            )
        for own in ("q_proj", "k_proj", "v_proj", "out_proj"):
            getattr(public, own).load_state_dict(getattr(ours, own).state_dict())
        if turned:
            put(public.urpe.theta, ours.rotary.theta)
            put(public.urpe.v, ours.rotary.direction)
        lengths = (7, 9) if pattern == "NC" else (12,)

        def run(x: Tensor, key: Tensor | None = None, public: Any = public) -> Tensor:
            x = x.transpose(0, 1)
            key = x if key is None else key.transpose(0, 1)
            return public(x, key, key)[0].transpose(0, 1)

        public_name = "NormLocalAttention" if is_local else "NormLinearAttention"
        recorder.save(file, source + public_name, run, recorder.inputs(*lengths, faint=None))


def make_s4(folder: Path) -> None:
    module = load(
        folder / "state-spaces+s4" / "models" / "s4" / "s4.py",
        pytorch_lightning=SimpleNamespace(),
        pytorch_lightning__utilities=SimpleNamespace(rank_zero_only=lambda f: f),
    )
    for pattern in ("NS", "CS"):
        recorder = Recorder("s4", pattern, 8, 1, state_size=16, perturbation=0.1)
        ours = recorder.ours
        public = module.S4Block(
            8,
            transposed=False,
            bidirectional=pattern == "NS",
            final_act=None,
            mode="dplr",
            d_state=16,
            n_ssm=8,
            disc="bilinear",
            l_max=None,
            verbose=False,
        ).eval()
        kernel = public.layer.kernel

        def run(x: Tensor, public: Any = public, ours: Any = ours, kernel: Any = kernel) -> Tensor:
            kernel.l_kernel.zero_()
            put(kernel.A_real, ours.log_decay)
            put(kernel.A_imag, ours.frequency)
            conjugate = torch.tensor([1.0, -1.0])  # it has the other mode of each pair
            put(kernel.P, ours.low_rank * conjugate)
            put(kernel.B, ours.input * conjugate)
            put(kernel.C, ours.readout * conjugate)
            put(kernel.inv_dt, ours.log_dt)
            put(public.layer.D, ours.skip)
            return ours.out_proj(public(x)[0])

        recorder.save(
            f"s4_{pattern.lower()}",
            "state-spaces/s4 e757cef, S4Block with the DPLR kernel",
            run,
            recorder.inputs(17),
            reason="without its last gate; the last map is torch's",
        )


def make_starts_of_s4(folder: Path) -> None:
    module = load(
        folder / "state-spaces+s4" / "models" / "s4" / "s4.py",
        pytorch_lightning=SimpleNamespace(),
        pytorch_lightning__utilities=SimpleNamespace(rank_zero_only=lambda f: f),
    )
    options = {"transposed": False, "final_act": None, "mode": "dplr", "d_state": 16, "n_ssm": 64, "verbose": False}
    drawn = [module.S4Block(64, bidirectional=False, **options).layer.kernel for _ in range(32)]
    statistics = {
        "log_decay": [x.A_real for x in drawn],
        "frequency": [x.A_imag for x in drawn],
        "log_dt": [x.inv_dt for x in drawn],
    }
    source = "state-spaces/s4 e757cef, S4Block with the DPLR kernel"
    save_start("s4_start", source, "s4", "CS", 64, 1, statistics, state_size=16)


if __name__ == "__main__":
    record_all(globals())
