"""Forward passes of every attention on fake CUDA tensors, and the table of the backends that compute them.

`python -m tests.helpers.attentions.on_fake_cuda` writes the table, attentions/backends.csv.
"""

import csv
from collections.abc import Iterator

import torch

from cab import build_attention, kernels
from cab.registry.registries import ATTENTIONS
from tests.helpers.fake_cuda import Counts, fake_cuda, to_fake_cuda
from tools.gpu.measurements import PRECISIONS, STORED as TABLE
from tools.gpu.supervisor import write_table

COLUMNS = ("attention", "pattern", "precision", "backends", "sdpa")
WRITE = "python -m tests.helpers.attentions.on_fake_cuda"
SIZES = 2, 600, 512  # sequences, tokens, and features in eight heads
SDPA = "sdpa "


def forward(
    name: str, pattern: str, precision: str, *, trains: bool = False, padded: bool = False
) -> tuple[Counts, kernels.Uses]:
    """Run one layer with its default options; if it ``trains``, with gradients recorded."""
    module = build_attention(name, pattern=pattern, embed_dim=SIZES[2], num_heads=8).train(trains)
    autocast, dtype = PRECISIONS[precision]
    with fake_cuda(autocast) as counts, kernels.used() as uses, torch.set_grad_enabled(trains):
        to_fake_cuda(module, dtype)
        x = torch.empty(SIZES, dtype=dtype, device="cuda")
        mask = torch.empty(SIZES[:2], dtype=torch.bool, device="cuda") if padded else None
        if pattern in {"NC", "CC"}:
            source = torch.empty(SIZES, dtype=dtype, device="cuda")
            module(x, source, source, query_padding_mask=mask, key_padding_mask=mask)
        else:
            module(x, query_padding_mask=mask)
    return counts, uses


def rows(name: str) -> Iterator[dict[str, str]]:
    """Yield the rows of one attention that use a kernel: operations with their backends, torch's of SDPA."""
    for pattern in map(str, ATTENTIONS.get(name).patterns):
        for precision in PRECISIONS:
            counts, uses = forward(name, pattern, precision)
            backends = (f"{operation} {backend}" for operation, by in uses.counts.items() for backend in by)
            sdpa = (kernel.removeprefix(SDPA) for kernel in counts.kernels if kernel.startswith(SDPA))
            cells = name, pattern, precision, "; ".join(sorted(backends)), "; ".join(sorted(sdpa))
            if uses.names - {"pytorch"} or cells[-1]:
                yield dict(zip(COLUMNS, cells, strict=True))


def stored() -> list[dict[str, str]]:
    with TABLE.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    write_table(TABLE, [row for entry in ATTENTIONS for row in rows(entry.name)])
