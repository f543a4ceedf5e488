"""Counting of floating-point operations and memory traffic of the operators that a call executes.

Matrix products are counted as in torch's FLOP counter (two operations per multiply-add), but fused causal attention
without the masked pairs. Other operators: one operation per element of a pointwise operator or sum, five for a softmax,
5 n log2(n) for a Fourier transform of n points, n log2(n) for sorting.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

PREFIX = "kernels of "
"""Start of a profiler region (``torch.profiler.record_function``) around kernels of the package that it names.

Operation counters do not see such kernels as torch operators.
"""
EACH_INPUT = {
    **dict.fromkeys(("abs_", "all", "amax", "amin", "any", "argmax", "argmin", "cummax", "cumprod", "cumsum"), 1),
    **dict.fromkeys(("floor_divide", "max", "mean", "min", "nonzero", "prod", "scatter_add", "scatter_add_", "sum"), 1),
    **dict.fromkeys(("log_sigmoid_forward", "logcumsumexp", "logsumexp", "var", "var_mean"), 3),
    **dict.fromkeys(("_log_softmax", "_safe_softmax", "_softmax"), 5),
    **dict.fromkeys(("native_group_norm", "native_layer_norm"), 7),
    "linalg_vector_norm": 2,
    "polar": 4,
    **dict.fromkeys(("_to_copy", "cat", "clone", "complex", "constant_pad_nd", "copy_", "diag_embed", "flip"), 0),
    **dict.fromkeys(("gather", "index", "index_put_", "index_select", "masked_fill_", "repeat", "roll"), 0),
    **dict.fromkeys(("scatter", "scatter_", "stack", "tril", "tril_", "triu", "triu_"), 0),
}
"""Operations per element of the first tensor, for operators that torch does not tag as pointwise; 0 for copies."""

CREATES = {
    *("arange", "eye", "fill_", "full", "full_like", "linspace", "new_full", "new_ones", "new_zeros", "ones"),
    *("ones_like", "rand", "randn", "randperm", "scalar_tensor", "zero_", "zeros", "zeros_like"),
}
"""Operators that only write."""

FREE_OPERATORS = {
    *("_linalg_check_errors", "_local_scalar_dense", "_record_function_exit", "_unsafe_view", "empty", "empty_like"),
    *("empty_strided", "new_empty", "new_empty_strided", "promote_types"),
}
"""Operators without computation and memory traffic."""

IN_PLACE = {"addmm_": torch.ops.aten.addmm, "baddbmm_": torch.ops.aten.baddbmm}
"""In-place products that torch's counter lacks, and their counterparts."""


class Operations(TorchDispatchMode):
    """Counts the operations of every operator below autograd.

    Attributes:
        products: floating-point operations in matrix products.
        others: floating-point operations in other operators.
        moved: bytes of the inputs and outputs of all operators: the memory traffic without fusion and caches.
        unknown: names of operators that are not counted.
        foreign: packages whose kernels were called; their operations are not counted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.products = self.others = self.moved = 0
        self.unknown: set[str] = set()
        self.foreign: set[str] = set()

    @property
    def flops(self) -> int:
        """Total number of floating-point operations."""
        return self.products + self.others

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name = func._overloadpacket.__name__
        if name not in FREE_OPERATORS and not func.is_view:
            read = () if name in CREATES else tensors((args, kwargs))
            self.moved += sum(map(stored_bytes, (*read, *tensors(out))))
            self._compute(func, name, args, kwargs, out)
        return out

    def _compute(self, func: Any, name: str, args: Any, kwargs: Any, out: Any) -> None:
        if name == "_record_function_enter_new":
            self.foreign |= {args[0].removeprefix(PREFIX)} if args[0].startswith(PREFIX) else set()
            return
        packet = IN_PLACE.get(name, func._overloadpacket)
        if name.startswith("_scaled_dot_product"):
            pairs, products = fused_attention(func, args, kwargs)
            self.products += products
            self.others += EACH_INPUT["_softmax"] * pairs
        elif packet in flop_registry:
            self.products += flop_registry[packet](*args, **kwargs, out_val=out)
        elif name in SOLVERS:
            self.others += SOLVERS[name](*args)
        elif name in CREATES:
            return
        elif name in EACH_INPUT:
            self.others += EACH_INPUT[name] * tensors(args)[0].numel()
        elif torch.Tag.pointwise in func.tags:
            self.others += sum(x.numel() * (2 if x.is_complex() else 1) for x in tensors(out))
        else:
            self.unknown.add(str(func))


def count_operations(call: Callable[[], object]) -> Operations:
    """Call once without gradients and count its operations."""
    with torch.no_grad(), Operations() as operations:
        call()
    return operations


def fused_attention(func: Any, args: Any, kwargs: Any) -> tuple[int, int]:
    """Return the number of unmasked pairs of query and key over rows and heads, and the operations of both products."""
    query, key, value = args[:3]
    named = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | kwargs
    n, m = query.shape[-2], key.shape[-2]
    visible = sum(min(i + 1, m) for i in range(n)) if named.get("is_causal") else n * m
    pairs = math.prod(query.shape[:-2]) * visible
    return pairs, 2 * pairs * (query.shape[-1] + value.shape[-1])


def sorting(x: Tensor, *_: Any) -> int:
    """Return the operations of a full sort along the last axis; also used for ``topk``."""
    return int(x.numel() * math.log2(max(2, x.shape[-1])))


def fourier(x: Tensor, axes: Sequence[int], *_: Any) -> int:
    """Return the operations of a Fourier transform; real transforms take half of those of complex ones."""
    points = math.prod(x.shape[axis] for axis in axes)
    return int((5 if x.is_complex() else 2.5) * x.numel() * math.log2(max(2, points)))


def triangular(matrix: Tensor, right: Tensor) -> int:
    """Return the operations of solving a triangular system for each column."""
    return matrix.shape[-1] * right.numel()


SOLVERS: dict[str, Callable[..., int]] = {
    "_embedding_bag_forward_only": lambda table, indices, *_: indices.numel() * table.shape[-1],
    "_fft_c2c": fourier,
    "_fft_c2r": fourier,
    "_fft_r2c": fourier,
    "cholesky_solve": lambda right, factor, *_: 2 * triangular(factor, right),
    "linalg_cholesky_ex": lambda matrix: matrix.numel() * matrix.shape[-1] // 3,
    "linalg_solve_triangular": triangular,
    "sort": sorting,
    "topk": sorting,
}
"""Operations of operators that are not proportional to their elements, from their positional arguments."""


def tensors(tree: Any) -> list[Tensor]:
    """Return the tensors in nested lists, tuples and dicts."""
    return [x for x in tree_leaves(tree) if isinstance(x, Tensor)]


def stored_bytes(x: Tensor) -> int:
    """Return the size of the elements, counting expanded axes once."""
    sizes = zip(x.shape, x.stride(), strict=True)
    return x.element_size() * math.prod(size for size, stride in sizes if stride or not size)
