"""The kernels of flash-linear-attention against our forms, under Triton's interpreter: run by test_fla_kernels.py.

The interpreter has to be chosen before Triton is loaded, so this runs in a process of its own (TRITON_INTERPRET=1).
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F
from triton.runtime.autotuner import Autotuner
from triton.runtime.interpreter import _implicit_cvt

from attentions.kernels import delta_rule as delta_rules, fla_kernels
from attentions.kernels.recurrence import recurrence
from cab.efficiency.operations import count_operations
from cab.kernels import Operation
from tools.verification.kernels import check_backend

HEADS, KEYS, VALUES = 2, 18, 20


@pytest.fixture(autouse=True)
def _on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the interpreter lacks: it times no settings, its loops count in Python's numbers, it has no bare gather."""
    import fla.ops.comba
    import fla.ops.delta_rule
    import fla.ops.gated_delta_product
    import fla.ops.gated_delta_rule
    import fla.ops.gdn2
    import fla.ops.generalized_delta_rule.dplr
    import fla.ops.gla
    import fla.ops.kda
    import fla.ops.simple_gla  # noqa: F401

    monkeypatch.setattr(Autotuner, "run", with_the_first_setting)
    for name, module in list(sys.modules.items()):
        if name.startswith("fla.ops"):
            monkeypatch.setattr(module, "range", steps, raising=False)
            if hasattr(module, "gather"):
                monkeypatch.setattr(module, "gather", lambda *given, **more: tl.gather(*given, **more))


def with_the_first_setting(self: Autotuner, *args: Any, **kwargs: Any) -> Any:
    self.nargs = dict(zip(self.arg_names, args, strict=False))
    setting = self.prune_configs(kwargs)[0].all_kwargs()
    self.pre_hook({**self.nargs, **kwargs, **setting}, reset_only=True)
    return self.fn.run(*args, **kwargs, **setting)


def steps(*ends: Any) -> Iterable[Any]:
    """Of a loop in a kernel tensors, as when it is compiled."""
    numbers = builtins.range(*map(int, ends))
    return map(_implicit_cvt, numbers) if any(isinstance(end, tl.tensor) for end in ends) else numbers


def draw(kind: str, length: int) -> dict[str, Tensor | None]:
    """Arguments of an operator; decays from next to none to ones that leave nothing."""
    rows = 2 if kind == "heads" else 1
    keys, values = (rows, HEADS, length, KEYS), (rows, HEADS, length, VALUES)
    given: dict[str, Tensor | None] = {"query": torch.randn(keys), "value": torch.randn(values)}
    given["key"] = key = F.normalize(torch.randn(keys), dim=-1)
    decay = -torch.randn(keys).mul(3).exp()
    if kind == "generalized":
        removal = F.normalize(torch.randn(keys), dim=-1)
        given |= {"removal": removal, "erasure": removal * torch.rand(keys), "log_decay": -0.6 * torch.rand(keys)}
    elif kind == "product":  # three keys per token
        given["query"] = given["query"][:, :, ::3]
        given |= {"strength": 2 * torch.rand(keys[:3]), "log_decay": decay[:, :, ::3, 0]}
    elif kind == "comba":
        given |= {"removal": key * torch.rand(keys[:2])[..., None, None], "strength": torch.rand(keys[:3])}
        given["log_decay"] = decay[..., 0]
    elif kind in ("kda", "gated_2"):
        strength = torch.rand(keys if kind == "gated_2" else (*keys[:3], 1))
        given |= {"strength": strength, "log_decay": -0.6 * torch.rand(keys)}
    elif kind == "features":
        given["log_decay"] = decay
    elif kind == "heads":  # one query and key for all heads, one decay for all rows
        given |= {"query": key[:, :1].flip(2), "key": key[:, :1], "log_decay": decay[:1, ..., 0]}
    elif kind == "endless":
        given["log_decay"] = None
    else:
        given |= {"strength": 2 * torch.rand(keys[:3]), "log_decay": decay[..., 0] if kind == "gated" else None}
    return given | {"state": torch.randn(rows, HEADS, KEYS, VALUES)}


def results(form: Callable[..., tuple[Tensor, Tensor]], given: dict[str, Tensor | None]) -> list[Tensor]:
    """Outputs, the state, and the gradients of every argument."""
    leaves = {name: None if x is None else x.clone().requires_grad_() for name, x in given.items()}
    output, state = form(**leaves)
    loss = output.double().cos().sum() + state.double().sin().sum()
    return [output, state, *torch.autograd.grad(loss, [x for x in leaves.values() if x is not None])]


@pytest.mark.parametrize(
    ("operation", "kind", "length", "factors"),
    [
        (recurrence, "heads", 70, torch.float32),
        (recurrence, "endless", 70, torch.float32),
        (recurrence, "features", 70, torch.float32),
        (delta_rules.delta_rule, "gated", 70, torch.float32),
        (delta_rules.delta_rule, "plain", 70, torch.float16),  # refuses float32, as does delta_product
        (delta_rules.generalized_delta_rule, "generalized", 37, torch.float32),
        (delta_rules.kda, "kda", 70, torch.float32),
        (delta_rules.gated_delta_rule_2, "gated_2", 70, torch.float32),
        (delta_rules.comba, "comba", 70, torch.float32),
        (delta_rules.delta_product, "product", 69, torch.float16),
    ],
    ids=lambda x: getattr(x, "name", str(x)),
)
@pytest.mark.filterwarnings("ignore:ChunkDeltaRuleFunction does not support float32")
def test_an_operation(
    operation: Operation[..., tuple[Tensor, Tensor]],
    kind: str,
    length: int,
    factors: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A length that is no whole number of blocks, widths that are no powers of two."""
    monkeypatch.setattr(fla_kernels, "FACTORS", factors)
    given = draw(kind, length)
    found = results(operation.backends[0].run, given)
    expected = results(operation.reference, {name: None if x is None else x.double() for name, x in given.items()})
    for got, wanted in zip(found, expected, strict=True):
        assert got.dtype is torch.float32
        assert (got - wanted).norm() <= (1e-4 if factors is torch.float32 else 1e-2) * wanted.norm()


def test_who_counts_operators_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fla_kernels, "FACTORS", torch.float32)
    given = draw("heads", 5)
    assert count_operations(lambda: fla_kernels.recurrence(**given)).foreign == {"flash-linear-attention"}


FUSED = (
    recurrence, delta_rules.delta_rule, delta_rules.delta_product, delta_rules.generalized_delta_rule,
    delta_rules.rwkv7, delta_rules.kda, delta_rules.gated_delta_rule_2, delta_rules.comba,
)  # fmt: skip


@pytest.mark.parametrize("operation", FUSED, ids=lambda operation: operation.name)
def test_an_operation_is_as_exact_as_its_reference(
    operation: Operation[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float16, since the interpreter has no bfloat16."""
    monkeypatch.setattr(fla_kernels, "FACTORS", torch.float16)
    found = check_backend(operation, operation.backends[0], "cpu", torch.float16, 64, (131,))
    assert found is not None
    assert found.passed, found
