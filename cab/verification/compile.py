"""torch.compile check: the attention compiles to a single graph. Slow, so it runs only on request."""

from __future__ import annotations

import torch
import torch._dynamo

from cab.verification.check import Worst, check
from cab.verification.subject import Subject

LENGTH = 600
"""Longer than the blocks of causal implementations."""


@check("compile", is_quick=False)
def compile_graph_breaks(subject: Subject) -> Worst:
    """torch.compile captures the call in a single graph, in evaluation and in training mode."""
    worst = Worst("graph breaks", limit=0.0)
    for training in (False, True):
        module = subject.build().train(training)
        inputs = subject.draw(module, LENGTH).requiring_grad()
        torch._dynamo.reset()
        explained = torch._dynamo.explain(lambda *tensors, module=module: module(*tensors))(*inputs.tensors().values())
        reasons = "; ".join(str(reason.reason).splitlines()[0] for reason in explained.break_reasons)
        mode = "training" if training else "evaluation"
        worst.add(explained.graph_break_count, f"n={LENGTH}, {mode}{f' ({reasons})' if reasons else ''}")
    return worst
