"""What `cab verify` checks without a clock: tests share the processor with other work."""

from __future__ import annotations

from cab.verification import select_checks

UNTIMED_OPTION = ["--checks", ",".join(check.name for check in select_checks() if check.name != "time_growth")]
