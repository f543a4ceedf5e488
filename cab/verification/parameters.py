"""Parameters: the paper's rule that an attention adds at most a tenth to a backbone."""

from __future__ import annotations

from cab.verification.check import Worst, check
from cab.verification.subject import Subject, takes

SLOTS, WIDTH, HEADS = 12, 768, 12
BACKBONE = 122_319_360
"""GPT-2 with softmax attention: what Table 17 of CAB counts (122.32 million), 12 layers of width 768."""

BUDGET = 0.1


def takes_width(subject: Subject) -> bool:
    return takes(subject.cls, "embed_dim")


@check("parameters", applies=takes_width)
def parameter_budget(subject: Subject) -> Worst:
    """In every layer of GPT-2 in place of softmax attention it adds at most 10%, or what its class declares.

    The rule is about a backbone, so the measure is one: the paper's language model. A method that was published
    with more (S4D, LongShort) says how much in ``parameter_budget``; other backbones are in `cab params`.
    """
    module = subject.build(embed_dim=WIDTH, num_heads=HEADS)
    budget = getattr(subject.cls, "parameter_budget", BUDGET)
    width = module.embed_dim
    assert isinstance(width, int)
    own = sum(parameter.numel() for parameter in module.parameters())
    added = SLOTS * (own - 4 * width * (width + 1)) / BACKBONE
    worst = Worst("part of GPT-2's parameters that is added:", limit=budget)
    declared = f", {budget:.0%} declared by the class beside the paper's {BUDGET:.0%}" if budget != BUDGET else ""
    worst.add(max(added, 0.0), f"width {width}, {own:,} parameters a layer{declared}")
    return worst
