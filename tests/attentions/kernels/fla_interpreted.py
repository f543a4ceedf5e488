"""The kernels of flash-linear-attention against our forms, under Triton's interpreter: run by test_fla_kernels.py.

The interpreter has to be chosen before Triton is loaded, so this runs in a process of its own (TRITON_INTERPRET=1).
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from attentions.kernels import delta_rule as delta_rules, fla_kernels
from attentions.kernels.causal_abc import causal_abc
from attentions.kernels.recurrence import recurrence
from cab.efficiency.operations import count_operations
from cab.verification.on_demand.kernels import LENGTHS, agreements
from cab.verification.suite import subject_of
from tests.attentions.kernels.interpreted_errors import SUBJECTS
from tests.helpers.attentions.agreement import with_gradients
from tests.helpers.attentions.interpreter import interpret_fla, run_on_a_cpu

HEADS, KEYS, VALUES = 2, 18, 20
LIMITS = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 3e-2}
"""Errors relative to the norm, by the type of queries, keys and values."""
NIGHTLY = (pytest.mark.slow, pytest.mark.nightly)
SHORT = ("deltanet", "mla")  # attentions that take less than ten seconds each


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """Instead of the folder's: the kernels run on a CPU, and uncleared memory, of which they read some, has no NaN."""
    interpret_fla(monkeypatch)


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
        given |= {"strength": strength, "log_decay": decay.clamp(min=-100.0)}
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
    return with_gradients(lambda *x: form(**dict(zip(given, x, strict=True))), given.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("operation", "kind", "length", "factors"),
    [
        (recurrence, "heads", 70, torch.float32),
        (recurrence, "endless", 70, torch.float32),
        (recurrence, "features", 70, torch.float32),
        (delta_rules.delta_rule, "gated", 70, torch.float32),
        (delta_rules.delta_rule, "gated", 70, torch.bfloat16),
        (delta_rules.delta_rule, "plain", 70, torch.float16),  # refuses float32, as does delta_product
        (delta_rules.rwkv7, "generalized", 37, torch.float32),
        (delta_rules.kda, "kda", 70, torch.float32),
        (delta_rules.gated_delta_rule_2, "gated_2", 70, torch.float32),
        (delta_rules.comba, "comba", 70, torch.float32),
        (delta_rules.delta_product, "product", 69, torch.float16),
    ],
    ids=lambda x: getattr(x, "name", str(x)),
)
@pytest.mark.filterwarnings("ignore:ChunkDeltaRuleFunction does not support float32")
def test_an_operation(operation, kind, length, factors, monkeypatch):
    """A length that is no whole number of blocks, widths that are no powers of two."""
    monkeypatch.setattr(fla_kernels, "FACTORS", factors)
    given = draw(kind, length)
    found = results(operation.backends[0].run, given)
    expected = results(operation.reference, {name: None if x is None else x.double() for name, x in given.items()})
    for got, wanted in zip(found, expected, strict=True):
        assert got.dtype is torch.float32
        assert (got - wanted).norm() <= LIMITS[factors] * wanted.norm()


@pytest.mark.slow
def test_the_memory_of_abc():
    """In bfloat16, from a memory of earlier tokens, with padding at the end of one sequence."""
    tokens, sizes = torch.randn(3, 2, HEADS, 70, VALUES), (2, 2, HEADS, KEYS)
    padding = torch.arange(70) >= torch.tensor([[70], [55]])
    given = dict(zip(("query", "key", "value"), tokens.bfloat16(), strict=True))
    given |= {"compress": torch.randn(2, VALUES, KEYS) / 4, "padding": padding}
    given |= {"mass": torch.randn(sizes, dtype=torch.float64), "mean": torch.randn(*sizes, VALUES)}

    def outcome(form: Callable[..., tuple[Tensor, ...]], dtype: torch.dtype | None = None) -> list[Tensor]:
        inputs = {name: x if name == "padding" else x.to(dtype).requires_grad_() for name, x in given.items()}
        output, mass, mean = form(**inputs)
        seen = output.masked_fill(padding[:, None, :, None], 0.0)
        loss = sum(x.double().cos().sum() for x in (seen, mass, mean))
        return [seen, mass, mean, *torch.autograd.grad(loss, [x for x in inputs.values() if x.is_floating_point()])]

    (backend,) = causal_abc.backends
    for got, wanted in zip(outcome(backend.run), outcome(causal_abc.reference, torch.float64), strict=True):
        assert (got - wanted).norm() <= 2e-2 * wanted.norm()


def test_who_counts_operators_is_told(monkeypatch):
    monkeypatch.setattr(fla_kernels, "FACTORS", torch.float32)
    given = draw("heads", 5)
    assert count_operations(lambda: fla_kernels.recurrence(**given)).foreign == {"flash-linear-attention"}


@pytest.mark.parametrize("width", [64, pytest.param(128, marks=NIGHTLY)])
@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in SHORT else NIGHTLY) for name in SUBJECTS])
def test_backends_are_as_exact_as_readable_forms(name, width, monkeypatch):
    """Each operation of flash-linear-attention has an attention: in two precisions, with a state, all gradients."""
    subject = subject_of(name, SUBJECTS[name], options={})  # imports its operations
    run_on_a_cpu("fla", monkeypatch)
    found = list(agreements(subject, (width,), LENGTHS[:1]))
    assert found
    assert all(result.passed for result in found), found
