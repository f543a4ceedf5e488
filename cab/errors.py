"""Errors that are the user's to fix: the command line prints them as one line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A mistake in a command, a configuration, an option or a data file, with its fix in the message."""


class UnsupportedError(UserError):
    """A combination of things that exist but do not go together; a sweep leaves it out and says so."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a name that does not exist: suggests the nearest one and lists what does.

    >>> print(unknown_name("attention", "abd", ["abc", "vanilla"]))
    unknown attention 'abd': did you mean 'abc'? Known: abc, vanilla
    """
    known = sorted(known)
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'? " if near else ""
    return UserError(f"unknown {kind} '{name}': {hint}Known: {', '.join(known) or 'none'}")


def first_line(error: Exception) -> str:
    """The first line of an error that says something, else its kind."""
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
