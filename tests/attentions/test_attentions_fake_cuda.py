"""The counts on fake CUDA tensors, from which the kernel table and the host reads are made."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.helpers.fake_cuda import Counts, fake_cuda

READS: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool((x > 0).any()),
    "tolist": lambda x: x[0].tolist(),
    "nonzero": lambda x: x.nonzero(),
    "unique": lambda x: x.unique(),
    "mask": lambda x: x[x > 0],
    "assignment by a mask": lambda x: x.__setitem__(x > 0, 0.0),
    "repeats": lambda x: x.repeat_interleave((x[0] > 0).long(), dim=1),
    "to the host": lambda x: x.cpu(),
    "from the host": lambda x: torch.zeros(4).to(x.device),
    "number to the device": lambda x: torch.tensor(1.0, device=x.device),
    "list to the device": lambda x: torch.tensor([1.0, 2.0], device=x.device),
    "new_tensor": lambda x: x.new_tensor([1.0, 2.0]),
    "list of positions": lambda x: x[[0, 1]],
}

NO_READS: dict[str, Callable[[Tensor], object]] = {
    "sizes": lambda x: x[:, : x.shape[1] // 2].new_zeros(len(x)),
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "positions on the device": lambda x: x[torch.arange(2, device=x.device)],
    "non-blocking copy": lambda x: torch.zeros(4).to(x.device, non_blocking=True),
    "number into a slice": lambda x: x.__setitem__((slice(None), 0), 1.0),
    "number on the host": lambda x: x * torch.tensor(2.0),
    "computation on the host": lambda _: torch.arange(5).nonzero().tolist(),
}


def counted(function: Callable[[Tensor], object], *shape: int) -> Counts:
    with fake_cuda() as counts:
        x = torch.empty(shape, device="cuda")
        counts.bytes = 0
        function(x)
    return counts


@pytest.mark.parametrize("name", READS)
def test_a_read_by_the_host_is_seen(name: str) -> None:
    assert counted(READS[name], 4, 6).host


@pytest.mark.parametrize("name", NO_READS)
def test_what_the_device_does_alone_is_no_read(name: str) -> None:
    assert counted(NO_READS[name], 4, 6).host == []


def test_bytes() -> None:
    counts = counted(lambda x: x.view(6, 4).mT.half() + 1.0, 4, 6)
    assert counts.bytes == 24 * (4 + 2) + 24 * (2 + 2)


def test_nothing_stays_replaced() -> None:
    before = F.scaled_dot_product_attention, torch.compile, torch.is_autocast_enabled("cuda")
    with fake_cuda(torch.bfloat16) as counts:
        q = torch.empty(2, 4, 16, 64, device="cuda")
        assert F.scaled_dot_product_attention(q, q, q).dtype is torch.bfloat16
    assert counts.kernels == {"sdpa flash": 1}
    assert before == (F.scaled_dot_product_attention, torch.compile, torch.is_autocast_enabled("cuda"))
    assert torch.ones(3)[1:].sum() == 2.0
