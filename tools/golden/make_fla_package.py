"""Layers of the package flash-linear-attention 0.6.0: ``python -m tools.golden.make_fla_package FOLDER``.

FOLDER is the target of ``pip install --no-deps --target FOLDER flash-linear-attention==0.6.0 fla-core==0.6.0 einops``.
The layers' own ``forward`` runs on the CPU. Their Triton kernels are replaced as in :mod:`tools.golden.make_fla`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tools.golden.make_fla import KERNELS, convolution, convolutions, layer, norm, unit
from tools.golden.record import Recorder, in_double, put, save_start

SOURCE = "flash-linear-attention 0.6.0, layers."


def patch() -> None:
    """Replace what needs a GPU."""
    modules = importlib.import_module("fla.modules")
    modules.FusedRMSNormGated.forward = lambda module, x, gate: (
        norm(module, x) * (gate.sigmoid() if module.activation == "sigmoid" else F.silu(gate))
    )
    modules.ShortConvolution.forward = convolution
    kda = importlib.import_module("fla.ops.kda.naive").naive_recurrent_kda
    gdn2 = importlib.import_module("fla.ops.gdn2.naive").naive_recurrent_gdn2

    def run_kda(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        A_log: Tensor,  # noqa: N803
        dt_bias: Tensor,
        **more: Any,
    ) -> tuple[Tensor, Any]:
        decay = -A_log.exp().unsqueeze(-1) * F.softplus(g + dt_bias.view(g.shape[2:]))
        return kda(unit(q), unit(k), v, decay, beta.sigmoid() * (2 if more["allow_neg_eigval"] else 1))

    def run_gdn2(q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor, w: Tensor, **_: Any) -> tuple[Tensor, Any]:
        return gdn2(unit(q), unit(k), v, g, b, w)

    product = importlib.import_module("fla.ops.gated_delta_product.naive").naive_recurrent_gated_delta_product

    def run_product(
        q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, num_householder: int, **_: Any
    ) -> tuple[Tensor, Any]:
        scale = q.shape[-1] ** -0.5
        return product(unit(q), unit(k), v, g, beta, scale, output_final_state=True, num_householder=num_householder)

    comba = importlib.import_module("fla.ops.comba.naive").naive_chunk_comba

    def run_comba(q: Tensor, k: Tensor, v: Tensor, p: Tensor, g: Tensor, beta: Tensor, **_: Any) -> tuple[Tensor, Any]:
        feedback = p.norm(dim=-1, keepdim=True) / k.norm(dim=-1, keepdim=True)
        return comba(unit(q), unit(k), v, feedback * unit(k), g, beta, output_final_state=True)

    importlib.import_module("fla.layers.comba").chunk_comba = run_comba
    importlib.import_module("fla.layers.gated_deltaproduct").chunk_gated_delta_product = run_product
    importlib.import_module("fla.layers.kda").chunk_kda = run_kda
    importlib.import_module("fla.layers.gdn2").chunk_gdn2 = run_gdn2


def make(file: str, name: str, module: str, cls: str, linears: dict[str, str], **options: Any) -> None:
    """Record one layer with heads of 8 of width 16."""
    recorder = Recorder(name, "CS", 16, 2, **options)
    negative = options.get("negative_eigenvalues", False)
    public = layer(module, cls, hidden_size=16, num_heads=2, head_dim=8, allow_neg_eigval=negative)
    ours = recorder.ours
    recorder.linears(q_proj=public.q_proj, k_proj=public.k_proj, v_proj=public.v_proj, out_proj=public.o_proj)
    recorder.linears(**{own: getattr(public, theirs) for own, theirs in linears.items()})
    put(public.f_proj[0].weight, ours.decay_map[0].weight)
    put(public.f_proj[1].weight, ours.decay_map[1].weight)
    put(public.dt_bias, ours.decay_map[1].bias)
    recorder.linears(**{f"gate_map.{i}": public.g_proj[i] for i in (0, 1)})
    put(public.A_log, ours.log_rate)
    put(public.o_norm.weight, ours.norm_weight)
    convolutions(recorder, public.q_conv1d, public.k_conv1d, public.v_conv1d)
    recorder.save(file, f"{SOURCE}{module}.{cls}", lambda x: public(x)[0], recorder.inputs(17), reason=KERNELS)


def start(name: str, module: str, cls: str, linears: dict[str, str]) -> None:
    """Record the initial parameters of layers of width 64."""
    drawn = []
    for seed in range(32):
        torch.manual_seed(seed)
        drawn.append(layer(module, cls, hidden_size=64, num_heads=32, head_dim=2))
    found: dict[str, Iterable[Tensor]] = {
        "decay_map.1.bias": [x.dt_bias for x in drawn],
        "log_rate": [x.A_log for x in drawn],
    }
    found |= {f"decay_map.{i}.weight": [x.f_proj[i].weight for x in drawn] for i in (0, 1)}
    found |= {f"gate_map.{i}.weight": [x.g_proj[i].weight for x in drawn] for i in (0, 1)}
    found |= {"gate_map.1.bias": [x.g_proj[1].bias for x in drawn]}
    linears = linears | {"q_proj": "q_proj", "v_proj": "v_proj", "out_proj": "o_proj"}
    found |= {f"{own}.weight": [getattr(x, theirs).weight for x in drawn] for own, theirs in linears.items()}
    save_start(f"{name}_start", f"{SOURCE}{module}.{cls}", name, "CS", 64, 32, found)


def make_deltaproduct() -> None:
    """Record three factors; the package orders features by factor, head and feature, we by head, factor and feature."""
    recorder = Recorder("deltaproduct", "CS", 16, 2, num_factors=3)
    public = layer(
        "gated_deltaproduct", "GatedDeltaProduct", hidden_size=16, num_heads=2, head_dim=6, num_householder=3
    )
    ours = recorder.ours

    def by_factor(x: Tensor) -> Tensor:
        return x.unflatten(0, (2, 3, -1)).transpose(0, 1).flatten(0, 2)

    recorder.linears(q_proj=public.q_proj, out_proj=public.o_proj, gate_proj=public.g_proj)
    for name, theirs in (("k_proj", public.k_proj), ("v_proj", public.v_proj), ("strength_proj", public.b_proj)):
        put(theirs.weight, by_factor(ours.get_submodule(name).weight))
    put(public.a_proj.weight, ours.step_proj.weight)
    put(public.dt_bias, ours.step_proj.bias)
    put(public.A_log, ours.log_rate)
    put(public.o_norm.weight, ours.norm_weight)
    convolutions(recorder, public.q_conv1d, public.k_conv1d, public.v_conv1d)
    for theirs in (public.k_conv1d, public.v_conv1d):
        put(theirs.weight, by_factor(theirs.weight.flatten(1).clone()))
    source = f"{SOURCE}gated_deltaproduct.GatedDeltaProduct"
    recorder.save("deltaproduct", source, lambda x: public(x)[0], recorder.inputs(17), reason=KERNELS)
    drawn = [
        layer("gated_deltaproduct", "GatedDeltaProduct", hidden_size=64, num_heads=64, head_dim=1) for _ in range(32)
    ]
    names = {"k_proj": "k_proj", "v_proj": "v_proj", "strength_proj": "b_proj", "gate_proj": "g_proj"}
    start = {f"{own}.weight": [getattr(x, theirs).weight for x in drawn] for own, theirs in names.items()}
    start |= {"step_proj.bias": [x.dt_bias for x in drawn], "log_rate": [x.A_log for x in drawn]}
    save_start("deltaproduct_start", source, "deltaproduct", "CS", 64, 64, start)


def make_comba() -> None:
    """Record the layer with the feedback of the equation: the scale c of k is not divided out."""
    recorder = Recorder("comba", "CS", 16, 2)
    public = layer("comba", "Comba", hidden_size=16, num_heads=2, head_dim=6)
    ours = recorder.ours
    recorder.linears(q_proj=public.q_proj, k_proj=public.k_proj, v_proj=public.v_proj, out_proj=public.o_proj)
    recorder.linears(gate_proj=public.g_proj, strength_proj=public.b_proj)
    put(public.a_proj.weight, ours.step_proj.weight)
    put(public.dt_bias, ours.step_proj.bias)
    put(public.A_log, ours.log_rate)
    put(public.decay, ours.feedback.flatten())
    put(public.D, ours.correction.flatten())
    put(public.o_norm.weight, ours.norm_weight)
    convolutions(recorder, public.q_conv1d, public.k_conv1d, public.v_conv1d)
    source = f"{SOURCE}comba.Comba"
    reason = f"{KERNELS}; the feedback is c k / |k|, as in the equation, instead of k / |k|"
    recorder.save("comba", source, lambda x: public(x)[0], recorder.inputs(17), reason=reason)
    drawn = [layer("comba", "Comba", hidden_size=64, num_heads=64, head_dim=1) for _ in range(32)]
    names = {"k_proj": "k_proj", "v_proj": "v_proj", "strength_proj": "b_proj", "gate_proj": "g_proj"}
    start = {f"{own}.weight": [getattr(x, theirs).weight for x in drawn] for own, theirs in names.items()}
    start |= {"step_proj.bias": [x.dt_bias for x in drawn], "log_rate": [x.A_log for x in drawn]}
    start |= {"feedback": [x.decay for x in drawn], "correction": [x.D for x in drawn]}
    save_start("comba_start", source, "comba", "CS", 64, 64, start)


def main(folder: Path) -> None:
    sys.path.insert(0, str(folder))
    patch()
    kda = ("kda", "kda", "KimiDeltaAttention", {"strength_proj": "b_proj"})
    gdn2 = ("gated_deltanet_2", "gdn2", "GatedDeltaNet2", {"strength_proj": "b_proj", "write_proj": "w_proj"})
    with in_double():
        for one in (kda, gdn2):
            make(one[0], *one)
            make(f"{one[0]}_negative", *one, negative_eigenvalues=True)
        make_deltaproduct()
        make_comba()
    for one in (kda, gdn2):
        start(*one)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
