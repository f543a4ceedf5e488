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
        """The pattern named by ``text``; UserError names the four when there is no such pattern."""
        try:
            return cls(text)
        except ValueError:
            raise UserError(f"unknown pattern '{text}': choose one of NS, CS, NC, CC") from None

    @classmethod
    def parse_many(cls, text: str) -> tuple[Pattern, ...]:
        """The patterns of a space-separated list, in the order NS, CS, NC, CC."""
        named = {cls.parse(word) for word in text.split()}
        return tuple(pattern for pattern in cls if pattern in named)


def pattern_rank(name: str) -> tuple[int, str]:
    """Sorts NS, CS, NC, CC in this order, before anything else that a record may hold."""
    names = [str(pattern) for pattern in Pattern]
    return (names.index(name) if name in names else len(names), name)
