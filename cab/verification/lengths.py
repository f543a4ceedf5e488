"""Lengths: any from one token on, in any combination of targets and source."""

from __future__ import annotations

from cab.verification.check import Worst, check
from cab.verification.subject import Subject

ANY = (2, 3, 4, 5, 7, 8, 11, 15, 16, 17, 24, 31, 32, 33, 47, 63, 64, 65, 96, 100, 127, 128, 129, 192, 255, 257)
PAIRS = ((1, 1), (1, 17), (17, 1), (1, 130), (130, 1), (5, 64), (64, 5), (33, 33), (129, 65))


@check("lengths")
def length_one(subject: Subject) -> Worst:
    """A single token (in cross patterns also a source of one) gives numbers, forward and backward."""
    return runs(subject, [(1, 1), (1, 2)] if subject.pattern.is_cross else [(1, 1)])


@check("lengths")
def any_length(subject: Subject) -> Worst:
    """Every length gives numbers of the input's shape, forward and backward, whatever a window or block is."""
    pairs = [(length, length) for length in ANY]
    return runs(subject, [*pairs, *PAIRS] if subject.pattern.is_cross else pairs)


def runs(subject: Subject, pairs: list[tuple[int, int]]) -> Worst:
    """Values and gradients that are no numbers, over lengths of targets and source and numbers of heads."""
    worst = Worst("values and gradients that are no numbers:", limit=0.0)
    for index, (length, source_length) in enumerate(pairs):
        embed_dim, num_heads = ((32, 4), (24, 3), (8, 1))[index % 3]
        where = f"n={length}, m={source_length}" if subject.pattern.is_cross else f"n={length}"
        module = subject.build(embed_dim=embed_dim, num_heads=num_heads).train()
        inputs = subject.draw(module, length, source_length, batch=1 + index % 2).requiring_grad()
        try:
            output = inputs.run(module)
            output.sum().backward()
        except Exception as error:
            raise RuntimeError(f"{where}: {type(error).__name__}: {error}") from error
        if output.shape != inputs.query.shape:
            raise ValueError(f"{where}: query {tuple(inputs.query.shape)} gives output {tuple(output.shape)}")
        gradients = [x.grad for x in inputs.tensors().values() if x.grad is not None]
        worst.add(sum(int((~x.isfinite()).sum()) for x in [output, *gradients]), where)
    return worst
