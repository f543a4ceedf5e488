"""The conformance suite: is an attention what its pattern promises?

Every check is one small function that measures something and says how much of it is allowed; `cab verify
--list-checks` lists them. A check runs on a :class:`Subject`, which is any class that follows the contract of
docs/reference/python.md, registered or not.
"""

from __future__ import annotations

from cab.verification.suite import CheckResult, run_checks, select_checks, subject_of, verify_attention

__all__ = ["CheckResult", "run_checks", "select_checks", "subject_of", "verify_attention"]
