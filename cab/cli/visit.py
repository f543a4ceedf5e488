"""`cab visit`: what a GPU has to show, in one short visit to a machine that has one."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from cab.errors import UserError
from cab.files.folders import check_writable

PARTS = ("verify", "agreement", "training", "efficiency", "throughput", "suite")

EPILOG = """\
The parts run in this order, each within its time limit and all within nine minutes; every row is written as it is
found. scripts/gpu.sh runs this on a machine that has nothing but Python and torch (docs/gpu.md).

examples:
  cab visit run visit
  cab visit run trial --device cpu --short
  cab visit summary visit
  cab visit merge visit
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    verbs = parser.add_subparsers(dest="what", required=True)
    run = verbs.add_parser("run", description="run the parts and print the summary")
    run.add_argument(
        "folder", type=Path, help="for the tables and the log; what an earlier visit left there is replaced"
    )
    run.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    run.add_argument("--short", action="store_true", help="tiny sizes, to try the code")
    run.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="default: all")
    run.add_argument("--seconds", type=float, help="for all parts (default: 490)")
    show = verbs.add_parser("summary", description="print the summary of a visit")
    show.add_argument("folder", type=Path)
    join = verbs.add_parser("merge", description="add the tables of a visit to those that are kept")
    join.add_argument("folder", type=Path)
    join.add_argument("--into", type=Path, metavar="DIR", help="default: results/efficiency/NAME-OF-THE-GPU")


def run(args: argparse.Namespace) -> int:
    if args.what == "run":
        return _run(args)
    from cab.visit.merge import merge
    from cab.visit.summary import summary

    if args.what == "summary":
        print(summary(args.folder))
    else:
        print(f"merged into {merge(args.folder, args.into)}", file=sys.stderr)
    return 0


def _run(args: argparse.Namespace) -> int:
    """0 when every part was answered, at least in part; 1 when one failed."""
    check_writable(args.folder, "folder")
    import torch

    from cab.visit.conduct import WHOLE, conduct, in_another_process, parts
    from cab.visit.summary import read_table, summary
    from cab.visit.visit import Visit

    if args.device == "cuda" and not in_another_process(torch.cuda.is_available):
        raise UserError("torch sees no GPU here; --device cpu --short tries the same code on a CPU")
    chosen = [part for part in parts() if part.name in args.parts]
    visit = Visit(args.folder.resolve(), args.device, args.short)
    conduct(visit, chosen, limit=args.seconds or WHOLE, say=lambda line: print(line, file=sys.stderr, flush=True))
    print(summary(visit.folder))
    return int(any(row["status"] == "failed" for row in read_table(visit.folder, "parts")))
