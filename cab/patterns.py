"""The four attention patterns of CAB, section 2: {noncausal, causal} x {self, cross}."""

from __future__ import annotations

from enum import StrEnum

from cab.errors import UserError


class Pattern(StrEnum):
    """What an attention at one place of a network may look at (CAB, Eq. 3-6).

    ``NS`` noncausal self, ``CS`` causal self, ``NC`` noncausal cross, ``CC`` causal cross: the output at
    target position i may use targets up to i only (CS, CC) or all of them (NS, NC); cross patterns read
    keys and values from a second sequence.
    """

    NS = "NS"
    CS = "CS"
    NC = "NC"
    CC = "CC"

    @property
    def is_causal(self) -> bool:
        return self in (Pattern.CS, Pattern.CC)

    @property
    def is_cross(self) -> bool:
        return self in (Pattern.NC, Pattern.CC)

    def __str__(self) -> str:
        return self.value

    @classmethod
    def parse(cls, text: str | Pattern) -> Pattern:
        """Return the pattern named by ``text``: ``CS``, or ``causal_self`` in words.

        Raises:
            ValueError: there is no such pattern.
        """
        found = cls.__members__.get(str(text)) or LONG_NAMES.get(str(text))
        if found is None:
            raise UserError(
                f"unknown pattern '{text}': choose one of NS, CS, NC, CC (or noncausal_self, causal_self, "
                "noncausal_cross, causal_cross)"
            )
        return found

    @classmethod
    def parse_many(cls, text: str) -> tuple[Pattern, ...]:
        """The patterns of a space-separated list, in the order NS, CS, NC, CC."""
        named = {cls.parse(word) for word in text.split()}
        return tuple(pattern for pattern in cls if pattern in named)


LONG_NAMES = {
    f"{'causal' if pattern.is_causal else 'noncausal'}_{'cross' if pattern.is_cross else 'self'}": pattern
    for pattern in Pattern
}
"""Patterns by their names in words, such as ``causal_self``."""


def pattern_rank(name: str) -> tuple[int, str]:
    """Sorts NS, CS, NC, CC in this order, before anything else that a record may hold."""
    names = [str(pattern) for pattern in Pattern]
    return (names.index(name) if name in names else len(names), name)
