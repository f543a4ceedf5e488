"""Layers of the package flash-linear-attention 0.6.0: ``python -m tools.golden fla_package FOLDER``.

FOLDER is the target of ``pip install --no-deps --target FOLDER flash-linear-attention==0.6.0 fla-core==0.6.0 einops``.
The layers' own ``forward`` runs on the CPU. Their Triton kernels are replaced as in :mod:`tools.golden.fla`.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tools.golden.fla import KERNELS, RATES, convolution, convolutions, gated_norm, layer, naive, save_heads, unit
from tools.golden.record import Recorder, drawn, put, save_start, seeded

SOURCE = "flash-linear-attention 0.6.0, "
BOUNDED = {"safe_gate": True, "lower_bound": -5.0}
"""Options of the public layer with the bounded gate."""
KDA = ("kda", "kda", "KimiDeltaAttention", "strength_proj=b_proj")
GDN2 = ("gated_deltanet_2", "gdn2", "GatedDeltaNet2", "strength_proj=b_proj write_proj=w_proj")


def patch() -> None:
    """Replace what needs a GPU."""
    modules = importlib.import_module("fla.modules")
    modules.FusedRMSNormGated.forward = gated_norm
    modules.ShortConvolution.forward = convolution
    kda, bounded = naive("kda.naive.naive_recurrent_kda"), naive("kda.gate.naive_kda_lowerbound_gate")
    gdn2, comba = naive("gdn2.naive.naive_recurrent_gdn2"), naive("comba.naive.naive_chunk_comba")
    product = naive("gated_delta_product.naive.naive_recurrent_gated_delta_product")

    def run_kda(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, **more: Any) -> Any:
        rate, bias = more["A_log"], more["dt_bias"]
        decay = -rate.exp().unsqueeze(-1) * F.softplus(g + bias.view(g.shape[2:]))
        if more["lower_bound"] is not None:
            decay = bounded(g, rate, bias, more["lower_bound"], output_dtype=torch.float64)
        return kda(unit(q), unit(k), v, decay, beta.sigmoid() * (2 if more["allow_neg_eigval"] else 1))

    def run_gdn2(q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor, w: Tensor, **_: Any) -> Any:
        return gdn2(unit(q), unit(k), v, g, b, w)

    def run_product(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, num_householder: int, **_: Any) -> Any:
        more = {"output_final_state": True, "num_householder": num_householder}
        return product(unit(q), unit(k), v, g, beta, q.shape[-1] ** -0.5, **more)

    def run_comba(q: Tensor, k: Tensor, v: Tensor, p: Tensor, g: Tensor, beta: Tensor, **_: Any) -> Any:
        feedback = p.norm(dim=-1, keepdim=True) / k.norm(dim=-1, keepdim=True)
        return comba(unit(q), unit(k), v, feedback * unit(k), g, beta, output_final_state=True)

    for name, kernel, function in (
        ("comba", "chunk_comba", run_comba),
        ("gated_deltaproduct", "chunk_gated_delta_product", run_product),
        ("kda", "chunk_kda", run_kda),
        ("gdn2", "chunk_gdn2", run_gdn2),
    ):
        setattr(importlib.import_module(f"fla.layers.{name}"), kernel, function)


def record(file: str, name: str, module: str, cls: str, strength: str, **options: Any) -> None:
    """Record one layer with heads of 8 of width 16."""
    gate = BOUNDED if "decay" in options else {}
    public = layer(module, cls, head_dim=8, allow_neg_eigval=options.get("negative_eigenvalues", False), **gate)
    names = "gate_map.0=g_proj.0 gate_map.1=g_proj.1 log_rate=A_log decay_map.0.weight=f_proj.0.weight "
    names += f"decay_map.1.weight=f_proj.1.weight decay_map.1.bias=dt_bias norm_weight=o_norm.weight {strength}"
    save_heads(Recorder(name, "CS", **options), file, f"{SOURCE}layers.{module}.{cls}", public, names)


def make_kda_and_gdn2() -> None:
    for one in (KDA, GDN2):
        record(one[0], *one)
        record(f"{one[0]}_negative", *one, negative_eigenvalues=True)
    record("kda_bounded", *KDA, decay="bounded")


def record_start(file: str, name: str, module: str, cls: str, strength: str, **options: Any) -> None:
    """Record the initial parameters of layers of width 64."""
    gate = BOUNDED if "decay" in options else {}
    modules = seeded(lambda: layer(module, cls, hidden_size=64, num_heads=32, head_dim=2, **gate))
    names = "decay_map.1.bias=dt_bias log_rate=A_log decay_map.0.weight=f_proj.0.weight "
    names += "decay_map.1.weight=f_proj.1.weight gate_map.0.weight=g_proj.0.weight gate_map.1.weight=g_proj.1.weight "
    names += "gate_map.1.bias=g_proj.1.bias q_proj.weight v_proj.weight out_proj.weight=o_proj.weight "
    names += " ".join(f"{ours}.weight={theirs}.weight" for ours, theirs in (x.split("=") for x in strength.split()))
    save_start(file, f"{SOURCE}layers.{module}.{cls}", name, "CS", 64, 32, drawn(modules, names), **options)


def start_kda_and_gdn2() -> None:
    for one in (KDA, GDN2):
        record_start(f"{one[0]}_start", *one)
    record_start("kda_bounded_start", *KDA, decay="bounded")


def make_stick_breaking() -> None:
    recorder = Recorder("stick_breaking", "CS")
    breaking = naive("stickbreaking_attn.naive.naive_stickbreaking_attn")
    core, source = lambda q, k, v: breaking(q, k, v)[0], SOURCE + "naive_stickbreaking_attn"
    recorder.save_core("stick_breaking", source, core, 17, tokens_first=True)


STARTS = "k_proj.weight v_proj.weight strength_proj.weight=b_proj.weight gate_proj.weight=g_proj.weight "
STARTS += "step_proj.bias=dt_bias log_rate=A_log"


def make_deltaproduct() -> None:
    """Record three factors; the package orders features by factor, head and feature, we by head, factor and feature."""
    recorder = Recorder("deltaproduct", "CS", num_factors=3)
    name = ("gated_deltaproduct", "GatedDeltaProduct")
    public = layer(*name, head_dim=6, num_householder=3)

    def by_factor(x: Tensor) -> Tensor:
        return x.unflatten(0, (2, 3, -1)).transpose(0, 1).flatten(0, 2)

    recorder.copy(public, f"q_proj out_proj=o_proj gate_proj=g_proj {RATES}")
    convolutions(recorder, public.q_conv1d, public.k_conv1d, public.v_conv1d)
    for ours, theirs in (("k_proj", public.k_proj), ("v_proj", public.v_proj), ("strength_proj", public.b_proj)):
        put(theirs.weight, by_factor(recorder.ours.get_submodule(ours).weight))
    for theirs in (public.k_conv1d, public.v_conv1d):
        put(theirs.weight, by_factor(theirs.weight.flatten(1).clone()))
    source = f"{SOURCE}layers.gated_deltaproduct.GatedDeltaProduct"
    recorder.save("deltaproduct", source, public, 17, reason=KERNELS)
    modules = [layer(*name, hidden_size=64, num_heads=64, head_dim=1) for _ in range(32)]
    save_start("deltaproduct_start", source, "deltaproduct", "CS", 64, 64, drawn(modules, STARTS))


def make_comba() -> None:
    """Record the layer with the feedback of the equation: the scale c of k is not divided out."""
    source, more = SOURCE + "layers.comba.Comba", "feedback=decay correction=D"
    reason = f"{KERNELS}; the feedback is c k / |k|, as in the equation, instead of k / |k|"
    names = f"{RATES} gate_proj=g_proj strength_proj=b_proj {more}"
    save_heads(Recorder("comba", "CS"), "comba", source, layer("comba", "Comba", head_dim=6), names, reason)
    modules = [layer("comba", "Comba", hidden_size=64, num_heads=64, head_dim=1) for _ in range(32)]
    save_start("comba_start", source, "comba", "CS", 64, 64, drawn(modules, f"{STARTS} {more}"))
