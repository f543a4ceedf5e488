"""Convert any cache object into a flat dict of tensors, batch first, and back.

A cache is pickled with its tensors taken out. So no knowledge of the cache class is required, a step cannot modify the
state that it received, and the rows of every tensor can be reordered.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch
from torch import Tensor

REST = "rest"
"""Key of everything except tensors: the bytes of the pickle, repeated for every row."""


def pack(cache: object, batch_size: int) -> dict[str, Tensor]:
    """Return the tensors of ``cache``, each with ``batch_size`` rows in its first dimension.

    A tensor of shape [1, B, ...], such as the states of one layer in older caches, is transposed. A tensor without a
    batch dimension is repeated for every row.
    """
    tensors: list[Tensor] = []

    class Pickler(pickle.Pickler):
        def persistent_id(self, item: Any) -> int | None:
            if not isinstance(item, Tensor):
                return None
            tensors.append(item.detach().clone())
            return len(tensors) - 1

    stream = io.BytesIO()
    Pickler(stream).dump(cache)
    rest = torch.frombuffer(bytearray(stream.getvalue()), dtype=torch.uint8)
    state = {REST: rest.expand(batch_size, -1).clone()}
    for index, x in enumerate(tensors):
        if x.dim() > 0 and x.shape[0] == batch_size:
            state[f"rows{index}"] = x
        elif x.dim() > 1 and x.shape[0] == 1 and x.shape[1] == batch_size:
            state[f"layer{index}"] = x.transpose(0, 1).contiguous()
        else:
            state[f"shared{index}"] = x.expand(batch_size, *x.shape).clone()
    return state


def unpack(state: dict[str, Tensor]) -> Any:
    """Return a new cache object from the result of :func:`pack`; it shares no memory with ``state``."""
    tensors = {}
    for name, x in state.items():
        if name.startswith("layer"):
            tensors[int(name.removeprefix("layer"))] = x.transpose(0, 1).contiguous()
        elif name.startswith("shared"):
            tensors[int(name.removeprefix("shared"))] = x[0].clone()
        elif name.startswith("rows"):
            tensors[int(name.removeprefix("rows"))] = x.clone()

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, index: Any) -> Tensor:
            return tensors[index]

    return Unpickler(io.BytesIO(bytes(state[REST][0].tolist()))).load()
