"""Sizes, device and precision of a measurement."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from cab.errors import UserError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@functools.cache
def appendix_g() -> dict[str, Any]:
    """Return the paper's sizes, lengths and options (Appendix G)."""
    return yaml.safe_load((Path(__file__).parent / "appendix_g.yaml").read_text())


@dataclass(frozen=True)
class Setting:
    """The settings shared by all attentions of one table.

    Args:
        batch_size: number of rows of the inputs [batch_size, length, embed_dim].
        embed_dim: their width, divided among ``num_heads`` heads.
        device: ``cpu`` or ``cuda``.
        dtype: ``float32``, or the dtype of inputs and autocast.
        repeats: number of rounds (protocol default) or calls (protocol paper).
        packed: distribution of the lengths of packed sequences (:func:`cab.efficiency.packed.sequence_lengths`);
            empty for sequences of equal length.
        time_limit: seconds for all calls of a module at one length.
        compile: whether modules are compiled with torch.compile.

    Raises:
        UserError: sizes below 1, a time limit that is not positive, embed_dim not divisible by num_heads, or an
            unavailable device.
    """

    batch_size: int = 4
    embed_dim: int = 512
    num_heads: int = 8
    device: str = "cpu"
    dtype: str = "float32"
    repeats: int = 5
    packed: str = ""
    time_limit: float = 600.0
    compile: bool = False

    def __post_init__(self) -> None:
        for name in ("batch_size", "embed_dim", "num_heads", "repeats"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 < self.time_limit < math.inf:
            raise UserError(f"time_limit must be a positive number of seconds, got {self.time_limit}")
        if self.embed_dim % self.num_heads:
            raise UserError(f"embed_dim {self.embed_dim} is not divisible by num_heads {self.num_heads}")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise UserError("device cuda is not available to torch; use --device cpu")

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]

    def autocast(self) -> torch.autocast:
        """Return the context in which modules are called: autocast for a low precision."""
        return torch.autocast(self.device, dtype=self.torch_dtype, enabled=self.torch_dtype is not torch.float32)
