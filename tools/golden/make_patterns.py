"""Fixed patterns: ``python -m tools.golden.make_patterns FOLDER``.

FOLDER contains a checkout per repository, named OWNER+NAME; each function names repository and commit.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor, nn

from tools.golden.record import Recorder, load, part, put, record_all


def make_scatterbrain(folder: Path) -> None:
    root = folder / "HazyResearch+fly" / "src" / "models" / "attention"
    features = load(
        root / "feature_maps_sb.py",
        src__models__attention__projection_utils=SimpleNamespace(gaussian_orthogonal_random_matrix=None),
    )
    utilities = load(root / "scatterbrain_utils.py")

    def near(x: Tensor, context: int) -> tuple[Tensor, Tensor]:
        place = torch.arange(x.shape[2])[:, None] - context // 2 + torch.arange(context)
        inside = (place >= 0) & (place < x.shape[2])
        return x[:, :, place.clamp(0, x.shape[2] - 1)], inside

    def products(q: Tensor, k: Tensor, _mask: Tensor, _lengths: Tensor, context: int) -> Tensor:
        keys, inside = near(k, context)
        return torch.einsum("bhte,bhtje->bhtj", q, keys).masked_fill(~inside, -1e24)

    def average(weights: Tensor, v: Tensor) -> Tensor:
        values, inside = near(v, weights.shape[-1])
        return torch.einsum("bhtj,bhtjd->bhtd", weights * inside, values)

    module = load(
        root / "sblocal_attention.py",
        fast_transformers=SimpleNamespace(),
        fast_transformers__local_product=SimpleNamespace(local_dot_product=products, local_weighted_average=average),
        src__models__modules__masking=SimpleNamespace(FullMask=None, LengthMask=None),
        src__models__attention__feature_maps_sb=features,
        src__models__attention__scatterbrain_utils=utilities,
    )
    recorder = Recorder("scatterbrain", "NS", 16, 2, window=5, num_features=12)
    ours = recorder.ours
    ours.weights[1] = ours.weights[0]  # its heads share one matrix
    public = module.SBLocalAttention(11, 8, nb_features=12).eval()
    public.feature_map.new_feature_map = lambda _: None
    public.feature_map.projection_matrix = ours.weights[0, :6]

    def run(x: Tensor) -> Tensor:
        q, k, v = (linear(x).unflatten(-1, (2, 8)) for linear in (ours.q_proj, ours.k_proj, ours.v_proj))
        return ours.out_proj(public(q, k, v)[0].flatten(2))

    recorder.save(
        "scatterbrain",
        "HazyResearch/fly 6b73449, SBLocalAttention",
        run,
        recorder.inputs(23),
        reason="local products of fast_transformers by torch; projections are torch's",
    )


def make_sparse_transformer(folder: Path) -> None:
    """TensorFlow's functions that the dense form calls, by torch."""
    tensorflow = SimpleNamespace(
        matrix_band_part=lambda x, low, _high: x.tril() if low < 0 else x.tril() - x.tril(-int(low) - 1),
        ones=torch.ones,
        zeros=lambda shape, dtype=None: torch.zeros(shape, dtype=dtype),
        minimum=min,
        range=lambda n, dtype=None: torch.arange(n, dtype=dtype),
        reshape=lambda x, shape: x.reshape(shape),
        transpose=lambda x, order=None: x.permute(order) if order else x.mT,
        equal=lambda x, y: x == y,
        floormod=lambda x, y: x % y,
        logical_and=lambda x, y: x & y,
        cast=lambda x, dtype: x.to(dtype),
        to_float=lambda x: x.double(),
        matmul=lambda x, y, transpose_b=False: x @ (y.mT if transpose_b else y),
        nn=SimpleNamespace(softmax=lambda x: x.softmax(dim=-1)),
        float32=torch.float64,
        float16=torch.float16,
        int32=torch.int32,
    )
    module = load(
        folder / "openai+sparse_attention" / "attention.py",
        tensorflow=tensorflow,
        blocksparse=SimpleNamespace(BlocksparseTransformer=None),
        utils=SimpleNamespace(shape_list=lambda x: list(x.shape), recomputable=lambda _: lambda f: f),
    )
    recorder = Recorder("sparse_transformer", "CS", 16, 2, layout="strided", spread="heads", stride=5)
    ours = recorder.ours

    def run(x: Tensor) -> Tensor:
        q, k, v = (linear(x) for linear in (ours.q_proj, ours.k_proj, ours.v_proj))
        halves = [
            module.attention_impl(*(y[..., at : at + 8] for y in (q, k, v)), 1, mode, 5)
            for at, mode in ((0, "local"), (8, "strided"))
        ]
        return ours.out_proj(torch.cat(halves, dim=-1))

    recorder.save(
        "sparse_transformer",
        "openai/sparse_attention c53f3bd, attention_impl, one head 'local' and one 'strided'",
        run,
        recorder.inputs(23),
        reason="TensorFlow's functions by torch; projections are torch's",
    )


def make_logsparse(folder: Path) -> None:
    path = folder / "AIStream-Peelout+flow-forecast" / "flood_forecast" / "transformer_xl"
    module = part(
        path / "transformer_bottleneck.py",
        "class Attention(",
        "\nclass LayerNorm",
        activation_dict={"Softmax": nn.Softmax},
        Parameter=nn.Parameter,
    )
    recorder = Recorder("logsparse", "CS", 8, 1, local=3, restart=8, kernel_size=3)
    ours = recorder.ours
    public = module["Attention"](1, 8, 40, True, 3, 8, sparse=True, attn_pdrop=0.0, resid_pdrop=0.0)
    weights = [linear.weight.unflatten(1, (3, 8)).transpose(1, 2) for linear in (ours.q_proj, ours.k_proj)]
    put(public.query_key.weight, torch.cat(weights))
    put(public.query_key.bias, torch.cat([ours.q_proj.bias, ours.k_proj.bias]))
    for theirs, own in ((public.value, ours.v_proj), (public.c_proj, ours.out_proj)):
        put(theirs.w, own.weight.mT)
        put(theirs.b, own.bias)
    recorder.save(
        "logsparse",
        "AIStream-Peelout/flow-forecast 304cf30, transformer_xl.transformer_bottleneck.Attention, one head",
        public,
        recorder.inputs(40),
        rows=(34, 40),
        reason="its early rows are dense by a rule with the total length; its last restart leaves out a token",
    )


if __name__ == "__main__":
    record_all(globals())
