"""Read golden files: numbers of public code with the parameters of one of our attentions (tools/golden writes them).

The file of an attention contains its cases, each in a folder of its name: ``about`` (JSON: attention, pattern, sizes,
options, source, tolerance), and either the inputs (``input.I``), parameters (``state.NAME``), random numbers
(``noise.NAME``), ``output`` and gradients (``grad.I``), or the quantiles of initial parameters (``start.NAME``).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cab import Attention, LayerPosition, build_attention

FOLDER = Path(__file__).parents[1] / "public_numbers"
QUANTILES = (0.0, 0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98, 1.0)


def cases() -> dict[str, Path]:
    found = {}
    for path in sorted(FOLDER.glob("*.npz")):
        with np.load(path) as file:
            found |= {name.removesuffix("/about"): path for name in file.files if name.endswith("/about")}
    return found


@dataclass(frozen=True)
class Golden:
    about: dict[str, Any]
    arrays: dict[str, Tensor]

    @classmethod
    def read(cls, path: Path, case: str) -> Golden:
        with np.load(path) as file:
            names = [name for name in file.files if name.startswith(f"{case}/")]
            arrays = {name.removeprefix(f"{case}/"): file[name] for name in names}
        return cls(json.loads(str(arrays.pop("about"))), {name: torch.from_numpy(x) for name, x in arrays.items()})

    def named(self, prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): x for name, x in self.arrays.items() if name.startswith(prefix)}

    def build(self) -> Attention:
        sizes = {name: self.about[name] for name in ("pattern", "embed_dim", "num_heads")}
        layer = {"layer_position": LayerPosition(*self.about["layer"])} if self.about["layer"] else {}
        return build_attention(self.about["attention"], **sizes, **layer, **self.about["options"])

    def distances(self) -> dict[str, float]:
        """Compute the differences of our output and gradients from the public ones, relative to the largest number."""
        module = self.build().double().eval()
        module.load_state_dict(self.named("state."))
        noise = self.named("noise.")
        if noise:
            module.sample_noise = lambda *_: noise  # type: ignore[method-assign]
        inputs = [x.double().requires_grad_() for _, x in sorted(self.named("input.").items())]
        output = module(*inputs, *inputs[1:])[:, slice(*self.about["rows"])]
        distances = {"output": distance(output, self.arrays["output"])}
        expected = self.named("grad.")
        if expected:
            gradients = torch.autograd.grad((output * direction(output)).sum(), inputs)
            distances |= {f"grad.{i}": distance(x, expected[str(i)]) for i, x in enumerate(gradients)}
        return distances

    def start_distances(self, seeds: int = 32) -> dict[str, float]:
        """Compute the differences between quantiles of initial parameters, relative to the range of the public ones."""
        levels = torch.tensor(QUANTILES, dtype=torch.float64)
        states = []
        for seed in range(seeds):
            torch.manual_seed(seed)
            states.append(self.build().state_dict())
        distances = {}
        for name, public in self.named("start.").items():
            ours = torch.cat([state[name].flatten() for state in states]).double().quantile(levels)
            largest, width = public.abs().max(), public[-1] - public[0]
            scale = width if width > 1e-6 * largest else largest or 1.0  # a constant, but for rounding
            distances[name] = ((ours - public)[1:-1].abs().max() / scale).item()
        return distances


def direction(x: Tensor) -> Tensor:
    """Return the weights with which an output is summed before its gradient is computed."""
    return torch.linspace(-1, 1, x.numel(), dtype=x.dtype).mul(9).view_as(x).cos()


def distance(ours: Tensor, public: Tensor) -> float:
    return ((ours - public).abs().max() / public.abs().max()).item()
