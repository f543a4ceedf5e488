"""Steps that a CUDA graph can repeat: in place they are what they are, without a break, and what refuses them."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from cab import Pattern, build_attention
from cab.efficiency import workload
from cab.efficiency.setting import Setting
from cab.efficiency.subjects import AttentionSubject
from cab.efficiency.workload import CudaGraphStep
from cab.registry.registries import ATTENTIONS
from tests.helpers.attentions.agreement import with_output
from tests.helpers.attentions.trust import slow_unless_new

ALWAYS = ("linear", "mamba3", "s4d")
CONSTANT = [
    pytest.param(entry.name, pattern, marks=[] if entry.name in ALWAYS else slow_unless_new(entry.name))
    for entry in ATTENTIONS
    for pattern in (Pattern.CS, Pattern.CC)
    if pattern in entry.patterns and getattr(entry.cls, "has_constant_size_state", False)
]
SMALL = Setting(batch_size=2, embed_dim=16, num_heads=2, repeats=2)


class Recorded(TorchDispatchMode):
    """Refuses what a CUDA graph cannot record: numbers that Python waits for, shapes that depend on values."""

    WAITED_FOR = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select", "_unique2")

    def __torch_dispatch__(
        self, function: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        assert function.overloadpacket.__name__ not in self.WAITED_FOR, function
        return function(*args, **(kwargs or {}))


@torch.no_grad()
@pytest.mark.parametrize(("name", "pattern"), CONSTANT)
def test_a_state_that_stands_is_the_one_that_is_handed_on(name, pattern):
    module = with_output(build_attention(name, pattern=pattern, embed_dim=16, num_heads=2)).double().eval()
    source = torch.randn(3, 20, 16).double() if pattern.is_cross else None
    _, state = module.prefill(torch.randn(3, 40, 16).double(), module.init_state(3, key=source, value=source))
    tokens = torch.randn(5, 3, 16).double()
    step = CudaGraphStep(module, state, tokens[0])
    places = {place: x.data_ptr() for place, x in step.state.items()}
    for token in tokens:
        expected, state = module.step(token, state)
        step.token.copy_(token)
        with Recorded():
            step()
        torch.testing.assert_close(step.output, expected)
    assert places == {place: x.data_ptr() for place, x in step.state.items()}
    for place, x in state.items():
        torch.testing.assert_close(step.state[place], x)


def test_the_phase_reads_the_same_tokens_again(monkeypatch):
    """The capture is left out: the call of a graph is then that of its step."""
    made: list[CudaGraphStep] = []

    def make(*parts: Any) -> CudaGraphStep:
        made.append(CudaGraphStep(*parts))
        return made[-1]

    monkeypatch.setattr(workload, "CudaGraphStep", make)
    monkeypatch.setattr(workload, "capture_graph", lambda call: call)
    module = AttentionSubject.parse("linear").build(Pattern.CS, SMALL)
    graphed = workload.PHASES["decode-graph"](module, Pattern.CS, 9, SMALL)
    graphed.call()
    first = made[0].output.clone()
    graphed.call()
    assert torch.equal(made[0].output, first)
    assert graphed.tokens == workload.DECODED
    assert graphed.state_bytes == workload.PHASES["decode"](module, Pattern.CS, 9, SMALL).state_bytes
