"""Compare random calls of all attentions with their reference implementations; exit status 1 if one differs.

python scripts/fuzz.py [CALLS] [--seed SEED] [--only NUMBER]
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.attentions.fuzz import check_calls


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("calls", nargs="?", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="repeat the call with this number")
    args = parser.parse_args()
    torch.set_num_threads(1)
    counts: Counter[str] = Counter()
    worst: dict[tuple[str, str], float] = {}
    for finding in check_calls(args.seed, range(args.calls) if args.only is None else [args.only]):
        call = finding.call
        if finding.error is None:
            counts["refused"] += 1
            continue
        counts["compared"] += 1
        counts[call.precision] += 1
        counts["in training"] += call.training
        counts["with padding"] += call.padding != ("none", "none")
        key = call.attention, call.precision
        worst[key] = max(worst.get(key, 0.0), finding.error / finding.limit if finding.error else 0.0)
        if not finding.passed:
            counts["failed"] += 1
            print(f"{finding.where} differ by {finding.error:.2g} > {finding.limit:.2g}: {call}", flush=True)
    print(", ".join(f"{count} {name}" for name, count in counts.items()))
    for (attention, precision), share in sorted(worst.items()):
        print(f"{attention:20} {precision:10} worst error / limit {share:9.2g}")
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
