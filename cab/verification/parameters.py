"""Parameter check: an attention adds at most 10% to the parameters of a backbone (CAB, Section 3.1)."""

from __future__ import annotations

from cab.verification.check import Worst, check
from cab.verification.subject import Subject, takes

LAYERS, WIDTH, HEADS = 12, 768, 12
BACKBONE = 122_319_360
"""Number of parameters of GPT-2 with softmax attention (12 layers, width 768), as counted in CAB, Table 17."""

BUDGET = 0.1


def takes_width(subject: Subject) -> bool:
    """Return whether the constructor accepts ``embed_dim``; modules of other packages have no budget."""
    return takes(subject.cls, "embed_dim") and not subject.is_foreign


@check("parameters", applies=takes_width, declared_in="parameter_budget")
def parameter_budget(subject: Subject) -> Worst:
    """In every layer of GPT-2, the attention adds at most 10% of the parameters, or its class's declared budget.

    GPT-2 is the paper's language model. Methods published with more parameters (S4D, LongShort) declare
    ``parameter_budget``; ``cab params`` reports the share for other backbones.
    """
    module = subject.build(embed_dim=WIDTH, num_heads=HEADS)
    budget = getattr(subject.cls, "parameter_budget", BUDGET)
    width = module.embed_dim
    assert isinstance(width, int)
    own = sum(parameter.numel() for parameter in module.parameters())
    added = LAYERS * (own - 4 * width * (width + 1)) / BACKBONE
    worst = Worst("share of GPT-2's parameters added", limit=budget)
    declared = f", {budget:.0%} declared by the class, {BUDGET:.0%} in the paper" if budget != BUDGET else ""
    worst.add(max(added, 0.0), f"width {width}, {own:,} parameters per layer{declared}")
    return worst
