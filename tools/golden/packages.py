"""Installed packages: linformer 0.2.3, axial-attention 0.6.1, memory-compressed-attention 0.0.7, FLASH-pytorch 0.1.9,
routing-transformer 1.6.1, sinkhorn-transformer 0.11.4 and reformer-pytorch 1.4.4.

Run as ``python -m tools.golden packages FOLDER``, where FOLDER is a target of ``pip install --no-deps``, with what
they import. They are no requirements of the tests.
"""

from __future__ import annotations

import importlib
import sys
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tools.golden.record import OURS, Recorder, put


def package(name: str) -> Any:
    for absent, attribute in (("product_key_memory", "PKM"), ("mixture_of_experts", "MoE")):
        sys.modules[absent] = SimpleNamespace(**{attribute: None})  # type: ignore[assignment]
    return importlib.import_module(name)


def make_linformer() -> None:
    recorder = Recorder("linformer", "NC", num_landmarks=4, max_length=12)
    public = package("linformer").LinformerSelfAttention(16, 12, k=4, heads=2)
    recorder.copy(public, "q_proj=to_q k_proj=to_k v_proj=to_v out_proj=to_out mix_k.mT=proj_k mix_v.mT=proj_v")
    recorder.save("linformer 0.2.3, LinformerSelfAttention", public, 7, 9)


def make_axial() -> None:
    recorder = Recorder("axial", "NS", 16, 4, width=7).without_biases("q_proj", "k_proj", "v_proj", "out_proj")
    ours, public = recorder.ours, package("axial_attention").AxialAttention(16, num_dimensions=2, heads=2)
    # The permutation of its first attention makes columns, that of its second rows; our first heads read rows.
    columns, rows = (attention.fn for attention in public.axial_attentions)
    for half, attention in enumerate((rows, columns)):
        part = slice(8 * half, 8 * half + 8)
        attention.heads, attention.dim_heads = 2, 4
        attention.to_q, attention.to_kv = nn.Linear(16, 8, bias=False), nn.Linear(16, 16, bias=False)
        put(attention.to_q.weight, ours.q_proj.weight[part])
        put(attention.to_kv.weight, ours.k_proj.weight[part], ours.v_proj.weight[part])
        out = nn.Linear(8, 16, bias=False)
        put(out.weight, ours.out_proj.weight[:, part])
        attention.to_out, attention.forward = nn.Identity(), merged_by_width(attention, out)
    run = lambda x: public(x.unflatten(1, (5, 7))).flatten(1, 2)  # noqa: E731
    recorder.save("axial-attention 0.6.1, AxialAttention with half of the heads per axis", run, 35)


def merged_by_width(attention: nn.Module, out: nn.Module) -> Any:
    """Its own forward reshapes the heads to the width of the model: a function of equal width is inserted."""
    original = type(attention).forward

    def forward(x: Tensor, **_: Any) -> Tensor:
        heads = original(attention, x)  # [b, t / 2, 16] where half of the width is used
        return out(heads.reshape(*x.shape[:2], 8))

    return forward


def make_mca() -> None:
    for pattern, rows in (("NS", (None, None)), ("CS", (2, None))):
        recorder = Recorder("mca", pattern)
        ours = recorder.ours
        ours.compress_v.load_state_dict(ours.compress_k.state_dict())
        public = package("memory_compressed_attention").MemoryCompressedAttention(16, heads=2, causal=pattern == "CS")
        public.compress_fn.conv.load_state_dict(ours.compress_k.state_dict())
        recorder.copy(public, "q_proj+k_proj+v_proj=to_qkv out_proj=to_out")
        put(public.to_qkv.weight[:16], 2**0.5 * ours.q_proj.weight)  # it divides by the root of the whole width
        # A null key of much negative product cannot be had; its exponential is taken out of the softmax instead.
        cat, pad = torch.cat, F.pad

        def without_null(parts: Any, dim: int = 0, cat: Any = cat) -> Tensor:
            return parts[1] if dim == 1 and len(parts) == 2 else cat(parts, dim=dim)

        def unpadded(x: Tensor, amounts: Any, value: float = 0, pad: Any = pad) -> Tensor:
            return x if amounts == (1, 0) else pad(x, amounts, value=value)

        def run(x: Tensor, public: Any = public, cat: Any = without_null, pad: Any = unpadded) -> Tensor:
            with mock.patch.object(torch, "cat", cat), mock.patch.object(F, "pad", pad):
                return public(x)

        reason = "its null key and value are left out; in CS rows before the end of the first group see it alone"
        source = "memory-compressed-attention 0.0.7, MemoryCompressedAttention"
        recorder.save(source, run, 18, case=f"mca_{pattern.lower()}", rows=rows, reason=reason)


def make_flash() -> None:
    flash = package("flash_pytorch.flash_pytorch")
    rotary = package("rotary_embedding_torch").RotaryEmbedding
    for pattern in ("NS", "CS"):
        common = {"dim": 8, "causal": pattern == "CS", "norm_klass": nn.Identity}
        quad = Recorder("flash_quad", pattern, 8, 1, query_key_dim=4, scale_length=9)
        public = flash.GAU(query_key_dim=4, add_residual=False, **common)
        unit(quad, public, public.offsetscale)
        # It divides the bias by the length and multiplies it by the root of the width, not of the heads.
        put(public.rel_pos_bias.relative_attention_bias.weight, 9 * (4 / 8) ** 0.5 * quad.ours.position_bias)
        quad.save("FLASH-pytorch 0.1.9, GAU", public, 9, case=f"flash_quad_{pattern.lower()}")
        gau = Recorder("flash_gau", pattern, 8, 1, query_key_dim=6, group_size=4)
        public = flash.FLASH(query_key_dim=6, group_size=4, rotary_pos_emb=rotary(dim=6), **common)
        unit(gau, public, public.qk_offset_scale)
        put(public.rel_pos_bias.relative_attention_bias.weight, gau.ours.position_bias)
        run = lambda x, public=public: public(x) - x  # noqa: E731
        gau.save("FLASH-pytorch 0.1.9, FLASH without its residual", run, 11, case=f"flash_gau_{pattern.lower()}")


def unit(recorder: Recorder, public: Any, offset: Any) -> None:
    out = "out_proj=to_out.0" if isinstance(public.to_out, nn.Sequential) else "out_proj=to_out"
    recorder.copy(public, f"v_proj+gate_proj=to_hidden.0 z_proj=to_qk.0 {out}")
    order = [0, 2, 1, 3] if len(recorder.ours.gamma) == 4 else [0, 1]  # queries before keys there
    put(offset.gamma, recorder.ours.gamma[order])
    put(offset.beta, recorder.ours.beta[order])
    public.eval()


def make_routing() -> None:
    recorder = Recorder("routing", "NS", num_clusters=4, window=11, local_heads=False)
    public = package("routing_transformer.routing_transformer")
    public.scatter_mean.__globals__["scatter_mean"] = exact_mean
    attention = public.KmeansAttention(4, 11, 2, 8).eval()
    attention.kmeans.means.copy_(recorder.ours.centroids)
    attention.kmeans.initted.fill_(True)
    core = recorder.around(lambda q, k, v: attention(F.layer_norm(q, (8,)), F.layer_norm(k, (8,)), v)[0])
    reason = "its count of clusters per token without the added 1e-5; projections and layer norm are torch's"
    recorder.save("routing-transformer 1.6.1, KmeansAttention", core, 41, reason=reason)


def exact_mean(src: Tensor, t: Tensor, index: Tensor, dim: int, _eps: float = 0.0) -> Tensor:
    return src.scatter_add(dim, index, t) / src.scatter_add(dim, index, torch.ones_like(t)).clamp(min=1)


def make_sinkhorn() -> None:
    recorder = Recorder("sinkhorn", "NS", block_size=6)
    ours = recorder.ours
    names = vars(package("sinkhorn_transformer.sinkhorn_transformer"))
    ours.v_proj.load_state_dict(ours.k_proj.state_dict())
    attention = names["SinkhornAttention"](6, 16, 8, 2, 42, non_permutative=False, sinkhorn_iter=8)
    names["gumbel_sinkhorn"] = lambda r, steps, temperature: names["sinkhorn_sorting_operator"](r / temperature, steps)
    names["F"] = SimpleNamespace(relu=lambda x: x)  # the scores themselves: its ReLU is left out
    reason = "without Gumbel noise and ReLU of the scores; it makes sorted values of sorted keys: equal here"
    recorder.save("sinkhorn-transformer 0.11.4, SinkhornAttention", recorder.around(attention), 42, reason=reason)


def make_reformer() -> None:
    # In several rounds it counts pairs whose chunks are in two rounds 0 times, and gives them e^20 times the weight.
    for pattern, num_buckets, chunk_size, rounds in (("CS", 2, 36, 3), ("NS", 6, 6, 1)):
        sizes = {"num_buckets": num_buckets, "chunk_size": chunk_size, "rounds": rounds}
        recorder = Recorder("reformer", pattern, **sizes, key_norm="unit")
        public = package("reformer_pytorch.reformer_pytorch").LSHAttention(
            bucket_size=36 // num_buckets,
            n_hashes=rounds,
            causal=pattern == "CS",
            allow_duplicate_attention=False,
            attend_across_buckets=pattern == "NS",
        )

        def run(x: Tensor, public: Any = public, ours: Any = recorder.ours) -> Tensor:
            q, v = ours.split_heads(ours.q_proj(x)), ours.split_heads(ours.v_proj(x))
            outputs = []
            for head in range(2):
                rotations = ours.rotations[:, head].transpose(0, 1).unsqueeze(0).to(x.dtype)  # [1, E, R, 1]
                with mock.patch.object(torch, "randn", mock.Mock(return_value=rotations)):
                    outputs.append(public(q[:, head], v[:, head])[0])
            return ours.out_proj(torch.cat(outputs, dim=-1))

        reason = f"it adds 1e-9 to the number of rounds in which a pair meets; {OURS}"
        options = {"faint": None, "tolerance": 1e-8, "reason": reason}
        recorder.save("reformer-pytorch 1.4.4, LSHAttention", run, 36, case=f"reformer_{pattern.lower()}", **options)
