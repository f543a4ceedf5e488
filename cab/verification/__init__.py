"""The conformance suite: checks whether an attention satisfies the contract of its pattern.

Each check is a function that measures a quantity and compares it with a limit; ``cab verify --list-checks`` lists
them. A check runs on a :class:`Subject`: any class that follows the contract in docs/reference/python.md, whether
registered or not.
"""

from __future__ import annotations

from cab.verification.suite import CheckResult, run_checks, select_checks, subject_of, verify_attention

__all__ = ["CheckResult", "run_checks", "select_checks", "subject_of", "verify_attention"]
