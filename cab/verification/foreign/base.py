"""The base class of modules that come from other packages."""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from cab.patterns import Pattern


class ForeignModule(nn.Module):
    """A module of another package behind the call signature of the conformance suite.

    The rules of this project that are not properties of an attention in general do not apply: no parameter budget, no
    ``ValueError`` for invalid calls, and finite values instead of NaN in the padding.

    Attributes:
        package: distribution that provides the module; its version is recorded with the verification. Empty for a file.
        patterns: patterns in which the module can run.
        padding_layouts: padding layouts that the module supports.
        max_self_contribution: residual connections and MLPs leave most of an output to its own token.
    """

    is_foreign: ClassVar[bool] = True
    package: ClassVar[str] = ""
    patterns: ClassVar[tuple[Pattern, ...]] = tuple(Pattern)
    padding_layouts: tuple[str, ...] = ("right", "left")
    max_self_contribution: ClassVar[float] = 0.9999

    embed_dim: int
