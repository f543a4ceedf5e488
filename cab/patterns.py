"""The four attention patterns of CAB (section 2): {noncausal, causal} x {self, cross}."""

from __future__ import annotations

from enum import StrEnum

from cab.errors import unknown_name


class Pattern(StrEnum):
    """Tokens that an attention layer may use (CAB, Eq. 3-6).

    The output at target position i depends on targets up to i (causal) or on all targets (noncausal). Keys and values
    come from the same sequence (self) or from a second sequence, the source (cross).

    Attributes:
        NS: noncausal self.
        CS: causal self.
        NC: noncausal cross.
        CC: causal cross.
    """

    NS = "NS"
    CS = "CS"
    NC = "NC"
    CC = "CC"

    @property
    def is_causal(self) -> bool:
        """Whether later targets must not affect an output."""
        return self in (Pattern.CS, Pattern.CC)

    @property
    def is_cross(self) -> bool:
        """Whether keys and values come from a source sequence."""
        return self in (Pattern.NC, Pattern.CC)

    def __str__(self) -> str:
        return self.value

    @classmethod
    def parse(cls, text: str | Pattern) -> Pattern:
        """Return the pattern called ``text``, such as ``CS`` or ``causal_self``.

        Raises:
            UserError: there is no such pattern.
        """
        pattern = cls.__members__.get(str(text)) or LONG_NAMES.get(str(text))
        if pattern is None:
            raise unknown_name("pattern", str(text), [*cls.__members__, *LONG_NAMES])
        return pattern

    @classmethod
    def parse_many(cls, text: str) -> tuple[Pattern, ...]:
        """Return the patterns in a space-separated list, in the order NS, CS, NC, CC."""
        named = {cls.parse(word) for word in text.split()}
        return tuple(pattern for pattern in cls if pattern in named)


LONG_NAMES = {
    f"{'causal' if pattern.is_causal else 'noncausal'}_{'cross' if pattern.is_cross else 'self'}": pattern
    for pattern in Pattern
}
"""Patterns by their long names, such as ``causal_self``."""


def pattern_rank(name: str) -> tuple[int, str]:
    """Return a sort key: NS, CS, NC, CC in this order, followed by any other name."""
    names = [str(pattern) for pattern in Pattern]
    return (names.index(name) if name in names else len(names), name)
