"""A device that is not the CPU: its tensors are computed on the CPU, and what a GPU would wait for is counted.

A tensor is on the device if it was created there or copied there, and so is what is computed from it. The device is
PyTorch's ``PrivateUse1``, for the whole process.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

ROOT = Path(__file__).parents[3]
aten = torch.ops.aten
READS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
"""Tags of operators whose result is a number for the host, or has a shape that the host cannot know."""
READS_INSIDE = {aten.masked_scatter_backward.default}
TRANSFERS = {aten._to_copy.default, aten.copy_.default}
READ_BY_INDEX = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}


class Backend(_DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


def register() -> torch.device:
    """Return the device, of which a process has one; module conversions keep the identity of parameters."""
    _setup_privateuseone_for_python_backend("simulated", backend_module=Backend())
    torch.__future__.set_swap_module_params_on_conversion(True)
    torch.autograd.set_multithreading_enabled(False)
    return torch.device("simulated:0")


class DeviceTensor(Tensor):
    """A tensor of the device, around one of the CPU."""

    content: Tensor

    @staticmethod
    def __new__(cls, content: Tensor) -> DeviceTensor:
        layout = {"strides": content.stride(), "storage_offset": content.storage_offset(), "dtype": content.dtype}
        tensor = Tensor._make_wrapper_subclass(cls, content.shape, **layout, device="simulated:0")  # type: ignore[attr-defined]
        tensor.content = content
        return tensor

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["content"], None

    @classmethod
    def __torch_dispatch__(cls, operator: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{operator} outside of Counting")

    def tolist(self) -> Any:
        return self.cpu().tolist()


class Counting(TorchDispatchMode):
    """Count launches, reads for which the host waits, and copies to the device that block, by the line of each.

    The first of several reads waits, and the others only if an operator was launched in between.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reset()
        self._pinned: dict[int, Any] = {}  # kept, or other memory could have the address

    def reset(self) -> None:
        self.launches, self.reads, self.copies = 0, Counter[str](), Counter[str]()
        self._is_idle = False

    def pin(self, tensor: Tensor) -> Tensor:
        """Stand in for ``Tensor.pin_memory``."""
        storage = (pinned := tensor.clone()).untyped_storage()
        self._pinned[storage.data_ptr()] = storage
        return pinned

    def __torch_dispatch__(self, operator: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        device = kwargs.get("device")
        inputs = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        wrappers = {id(x.content): x for x in inputs if isinstance(x, DeviceTensor)}
        target = args[0].device if operator is aten.copy_.default else device
        goes_to_device = bool(wrappers) if target is None else torch.device(target).type == "simulated"
        if wrappers or goes_to_device:
            self._count(operator, args, kwargs, [x for x in inputs if not isinstance(x, DeviceTensor)], goes_to_device)
        plain = pytree.tree_map_only(DeviceTensor, lambda x: x.content, (args, kwargs))
        if device is not None:
            plain[1]["device"] = torch.device("cpu")
        result = operator(*plain[0], **plain[1])
        if operator is aten.copy_.default:
            return args[0]
        if not goes_to_device:
            return result
        result = pytree.tree_map_only(
            Tensor, lambda x: wrappers[id(x)] if id(x) in wrappers else DeviceTensor(x), result
        )
        return return_and_correct_aliasing(operator, args, kwargs, result) if wrappers else result

    def _count(self, operator: Any, args: Any, kwargs: Any, from_host: list[Tensor], goes_to_device: bool) -> None:
        indices = [x for x in args[1] if x is not None] if operator in READ_BY_INDEX else []
        by_mask = any(x.dtype in (torch.bool, torch.uint8) for x in indices)
        fills = by_mask and operator is not aten.index.Tensor and args[2].numel() == 1
        if operator in TRANSFERS and from_host:
            if goes_to_device and not (self._is_pinned(from_host[-1]) and _non_blocking(operator, args, kwargs)):
                self.copies[_line()] += 1
        elif any(x in from_host for x in indices if x.dim()):
            self.copies[_line()] += 1
        elif any(x.dim() for x in from_host) or kwargs.get("generator") is not None:
            raise RuntimeError(f"{operator} on two devices")
        is_tagged = operator is not aten.index.Tensor and READS.intersection(operator.tags)
        if is_tagged or operator in READS_INSIDE or (by_mask and not fills) or not goes_to_device:
            if not self._is_idle:
                self.reads[_line()] += 1
            self._is_idle = True
        elif any(x.alias_info is None or x.alias_info.is_write for x in operator._schema.returns):
            self.launches, self._is_idle = self.launches + 1, False

    def _is_pinned(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._pinned


def _non_blocking(operator: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    return args[2] if operator is aten.copy_.default and len(args) > 2 else kwargs.get("non_blocking", False)


def _line() -> str:
    """Return the innermost line of the project, outside of this file."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(ROOT) and ".venv" not in path.parts and path != Path(__file__):
            return f"{path.relative_to(ROOT)}:{frame.f_lineno}"
        frame = frame.f_back
    return "outside of the project"
