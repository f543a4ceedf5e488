"""Gaussian kernels: ``python -m tools.golden.make_gaussian FOLDER``.

FOLDER contains a checkout per repository, named OWNER+NAME; each function names repository and commit.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tools.golden.record import Recorder, copy_linear, load, put, record_all


def make_kernelized(folder: Path) -> None:
    root = folder / "pkuzengqi+Skyformer" / "src" / "models"
    dense = load(root / "attention.py")
    recorder = Recorder("kernelized", "NS", 16, 2)
    ours = recorder.ours
    public = dense.SoftmaxAttention_RBF({"attention_dropout": 0.0, "head_dim": 8})

    def run(x: Tensor) -> Tensor:
        q, k, v = (ours.split_heads(linear(x)) for linear in (ours.q_proj, ours.k_proj, ours.v_proj))
        return ours.out_proj(ours.merge_heads(public(q, k, v, torch.ones(x.shape[:2]))))

    recorder.save("kernelized", "pkuzengqi/Skyformer 1a677cb, SoftmaxAttention_RBF", run, recorder.inputs(9))
    recorder = Recorder("skyformer", "NS", 32, 1, num_landmarks=6)
    sky = load(
        root / "attention_skyformer.py",
        {
            "from models.attention import SoftmaxAttention as SelfAttention": "",
            "from config import Config": "",
            "iterative_inv(STAS, 6)": "iterative_inv(STAS, 40)",
        },
    )
    own = recorder.ours
    config = {
        "device": "cpu",
        "max_seq_len": 9,
        "accumulation": 1,
        "sampling_factor": 1,
        "nb_features": 6,
        "head_dim": 32,
        "sketched_kernel": "kernel_RS_RBF",
        "no_projection": False,
    }
    nystrom = sky.Skyformer(config)
    index = (own.places * 9).long()
    chosen = torch.cat([index[:3], index[3:] + 9]).view(1, 1, 6)
    nystrom.uniform_sketching = lambda *_: (chosen.expand(2, -1, -1), torch.ones(2, 1, 6))

    def run_sky(x: Tensor) -> Tensor:
        q, k, v = (own.split_heads(linear(x)) for linear in (own.q_proj, own.k_proj, own.v_proj))
        return own.out_proj(own.merge_heads(nystrom(q, k, v, torch.ones(x.shape[:2]))))

    recorder.save(
        "skyformer",
        "pkuzengqi/Skyformer 1a677cb, Skyformer",
        run_sky,
        recorder.inputs(9),
        reason="40 steps of its iteration for the inverse instead of 6; its scale is right for heads of 32 alone",
    )


def make_soft(folder: Path) -> None:
    root = folder / "fudan-zvg+SOFT"
    text = (root / "models" / "softmax_free_transformer.py").read_text()
    start = text.index("class SoftmaxFreeAttentionKernel")
    text = text[start : text.index("class SoftmaxFreeTransformer(")].split("\nclass SoftmaxFreeTransformer")[0]

    def kernel(q: Tensor, k: Tensor) -> Tensor:
        return (q.unsqueeze(-2) - k.mT.unsqueeze(-3)).square().sum(dim=-1)

    def inverse(matrix: Tensor, _steps: int) -> Tensor:
        return torch.linalg.inv(matrix + 0.01 * torch.eye(matrix.shape[-1]))

    module: dict[str, Any] = {
        "torch": torch,
        "nn": nn,
        "math": math,
        "subtraction_gaussian_kernel": kernel,
        "newton_inverse_kernel": inverse,
    }
    exec(text, module)
    recorder = Recorder("soft", "NS", 16, 2, num_landmarks=3, conv_kernel_size=None)
    ours = recorder.ours
    public = module["SoftmaxFreeAttention"](16, 2, 2, 0).eval()
    copy_linear(ours.q_proj, public.W_q)
    recorder.linears(v_proj=public.W_v, out_proj=public.ff)
    op = public.attn.Qlandmark_op
    put(op.weight, ours.landmark_map.weight[:, :, None, None].expand(-1, -1, 2, 2).contiguous() / 4)
    public.attn.Qnorm_act[0].load_state_dict(ours.landmark_norm.state_dict())
    order = torch.tensor([0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11])  # groups of 2 x 2 of a grid 2 x 6 after another
    back = torch.argsort(order)

    def run(x: Tensor) -> Tensor:
        return public(x[:, back], 2, 6)[:, order]

    recorder.save(
        "soft",
        "fudan-zvg/SOFT d3febc3, SoftmaxFreeAttention on a grid of 2 x 6",
        run,
        recorder.inputs(12),
        reason="its convolution takes means of four tokens; its CUDA kernels (distances, inverse) by their formula",
    )


if __name__ == "__main__":
    record_all(globals())
