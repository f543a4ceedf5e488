"""Attentions with landmarks or compressed keys: ``python -m tools.golden.make_latents FOLDER``.

FOLDER contains a checkout per repository, named OWNER+NAME; each function names repository and commit.
"""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional, Union

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tools.golden.record import Recorder, load, part, put, record_all, save_start


def make_set_transformer(folder: Path) -> None:
    module = load(folder / "juho-lee+set_transformer" / "modules.py", {"math.sqrt(self.dim_V)": "8**0.5"})
    recorder = Recorder("set_transformer", "NS", 16, 2, num_inducing=3)
    recorder.identity()
    ours = recorder.ours
    public = module.ISAB(16, 16, 2, 3)
    inner, outer = public.mab0, public.mab1
    put(public.I, ours.inducing.transpose(0, 1).flatten(1))
    put(inner.fc_q.weight, torch.eye(16))
    put(inner.fc_q.bias, torch.zeros(16))
    recorder.linears(k_proj=inner.fc_k, v_proj=inner.fc_v, slot_layer=inner.fc_o)
    recorder.linears(q_proj=outer.fc_q, slot_k=outer.fc_k, slot_v=outer.fc_v)
    for parameter in outer.fc_o.parameters():
        put(parameter, torch.zeros_like(parameter))
    recorder.save(
        "set_transformer",
        "juho-lee/set_transformer 73432c6, ISAB",
        lambda x: public(x) - outer.fc_q(x),
        recorder.inputs(9),
        reason="divided by sqrt(E) instead of sqrt(D), without the outer block's residual and feed-forward layer",
    )


def make_luna(folder: Path) -> None:
    path = folder / "XuezheMax+fairseq-apollo" / "fairseq" / "modules" / "luna_attention.py"
    names = {
        "Dict": dict,
        "Optional": Optional,
        "Tuple": tuple,
        "Union": Union,
        "Tensor": Tensor,
        "with_incremental_state": lambda cls: cls,
        "FairseqDropout": lambda *_, **__: nn.Identity(),
        "quant_noise": lambda layer, *_: layer,
        "utils": SimpleNamespace(softmax=lambda x, dim, **_: x.softmax(dim=dim)),
    }
    module = part(path, "class LunarMultiheadAttention", None, **names)
    source = "XuezheMax/fairseq-apollo 3644d20, "
    recorder = Recorder("luna", "NC", 16, 2, num_landmarks=3)
    ours = recorder.ours
    public = module["LunarMultiheadAttention"](16, 2, 2)
    recorder.linears(slots_q=public.pq_proj, q_proj=public.q_proj, out_proj=public.out_proj)
    recorder.linears(k_proj=public.pc_proj, slots_k=public.c_proj)

    def run(x: Tensor, source: Tensor) -> Tensor:
        slots = ours.slots.unsqueeze(1).expand(-1, len(x), -1)
        return public(x.transpose(0, 1), slots, source.transpose(0, 1))[0].transpose(0, 1)

    recorder.save("luna_nc", source + "LunarMultiheadAttention with P of ours", run, recorder.inputs(7, 9))
    recorder = Recorder("luna", "CS", 16, 2, num_landmarks=3)
    own = recorder.ours
    causal = module["LunarCausalAttention"](16, 2)
    recorder.linears(slots_q=causal.pq_proj, q_proj=causal.q_proj, out_proj=causal.out_proj)
    recorder.linears(pack_k=causal.pc_proj, k_proj=causal.c_proj)

    def run_causal(x: Tensor) -> Tensor:
        slots = own.slots.unsqueeze(1).expand(-1, len(x), -1)
        return causal(x.transpose(0, 1), slots)[0].transpose(0, 1)

    recorder.save("luna_cs", source + "LunarCausalAttention with P of ours", run_causal, recorder.inputs(9))


def make_starts_of_luna(folder: Path) -> None:
    path = folder / "XuezheMax+fairseq-apollo" / "fairseq" / "modules" / "luna_attention.py"
    module = part(
        path,
        "class LunarMultiheadAttention",
        None,
        Dict=dict,
        Optional=Optional,
        Tuple=tuple,
        Union=Union,
        Tensor=Tensor,
        math=math,
        with_incremental_state=lambda cls: cls,
        FairseqDropout=lambda *_, **__: nn.Identity(),
        quant_noise=lambda layer, *_: layer,
        utils=None,
    )
    drawn = [module["LunarMultiheadAttention"](16, 2, 2) for _ in range(32)]
    names = {"slots_q": "pq_proj", "q_proj": "q_proj", "k_proj": "pc_proj", "slots_k": "c_proj", "out_proj": "out_proj"}
    statistics = {f"{ours}.weight": [getattr(x, theirs).weight for x in drawn] for ours, theirs in names.items()}
    save_start(
        "luna_start", "XuezheMax/fairseq-apollo 3644d20, LunarMultiheadAttention", "luna", "NC", 16, 2, statistics
    )


def make_nsa(folder: Path) -> None:
    root = folder / "XunhaoLai+native-sparse-attention-triton" / "native_sparse_attention" / "ops" / "torch"
    compressed = load(root / "compressed_attention.py").compressed_attention_torch
    sparse = load(root / "topk_sparse_attention.py").topk_sparse_attention_torch
    sizes = {"block_size": 4, "num_blocks": 4, "window_size": 5, "compress_size": 4, "compress_stride": 2}
    for file, options in (("nsa", {}), ("nsa_means", {"compression": "mean", "separate_kv": False})):
        recorder = Recorder("nsa", "CS", 16, 4, num_kv_heads=2, **sizes, **options)
        ours = recorder.ours

        def run(x: Tensor, ours: Any = ours) -> Tensor:
            rows = []
            for row in x:
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
                gates = ours.gate(row).sigmoid().unflatten(-1, (-1, 3))
                parts = (first, second, third)
                rows.append(sum(g * y for g, y in zip(gates.split(1, dim=-1), parts, strict=True)).flatten(1))
            return ours.out_proj(torch.stack(rows))

        recorder.save(
            file,
            "XunhaoLai/native-sparse-attention-triton 9bea856, compressed_attention_torch, topk_sparse_attention_torch",
            run,
            recorder.inputs(32, batch=1),
            reason="projections, the MLP of a block, the window and the gates are torch's",
        )


def make_yoso(folder: Path) -> None:
    path = folder / "mlpen+YOSO" / "encoders" / "backbones" / "efficient_attentions" / "yoso" / "yoso_v1" / "yoso.py"
    hashing = part(path, "def hashing", "\nclass ")["hashing"]
    recorder = Recorder("yoso", "NS", 16, 2, num_hashes=5, hash_length=3)
    ours = recorder.ours

    def run(x: Tensor) -> Tensor:
        q, k, v = (ours.split_heads(linear(x)) for linear in (ours.q_proj, ours.k_proj, ours.v_proj))
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        outputs = []
        for head in range(2):
            planes = ours.hyperplanes[head].transpose(0, 1).flatten(1)  # [E, m tau]
            drawn = torch.randn
            torch.randn = lambda *_, planes=planes, **__: planes  # type: ignore[assignment]
            try:
                codes = hashing(q[:, head], k[:, head], 5, 3)
            finally:
                torch.randn = drawn
            same = (codes[0].unsqueeze(2) == codes[1].unsqueeze(1)).to(x.dtype).mean(dim=-1)
            outputs.append(F.normalize(same @ v[:, head], dim=-1))
        return ours.out_proj(torch.cat(outputs, dim=-1))

    recorder.save(
        "yoso",
        "mlpen/YOSO 6000487, yoso_v1.hashing",
        run,
        recorder.inputs(9, faint=None),
        gradients=False,
        reason="its tables of values, which need a GPU, are sums over pairs of equal codes; its gradient is estimated",
    )


if __name__ == "__main__":
    record_all(globals())
