"""`cab efficiency`: time and memory of attentions by sequence length."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from cab.cli.terminal import print_note
from cab.errors import UserError
from cab.files.disk import check_writable

if TYPE_CHECKING:
    from cab.efficiency.subjects import AttentionSubject
    from cab.patterns import Pattern

PHASES = ("forward", "forward+backward", "decode", "decode-graph")
PACKED = ("uniform", "log-normal", "one-long")
REPEATS = {"cpu": 5, "cuda": 20}

EPILOG = """\
Protocol default: after warm-up, every module runs once per round in random order. The table shows the median over
rounds; the CSV adds the 10th and 90th percentile. On CUDA, time is measured by device events with a cold L2 cache;
clocks, temperature and throttling are recorded, and a GPU used by other processes is rejected. Column
`relative_to_softmax` is the median ratio to vanilla in the same round; on a busy machine, compare ratios instead of
milliseconds. Memory is the peak of torch's allocator during a call, above inputs and weights.

Phases: forward (evaluation mode, no gradients) and forward+backward (training mode, dropout 0). Phase decode gives
seconds per token after a prefix of the given length, as the mean of 64 tokens, and the size of the state. Phase
decode-graph is the same with one CUDA graph per token, for constant-size states. Low precision uses autocast.

Roofline: operations are counted in a forward pass (three times as many with backward, without recomputation). The lower
bound of the memory traffic is the size of inputs, outputs, weights and state. The rates of a large matrix product and
of a copy are measured in every round; `roof_share` is the smallest time that they permit, relative to the measured
time. Columns: flops, product_flops, least_bytes, moved_bytes, roof, roof_share, matmul_rate, bandwidth.

Packed sequences (--packed): the tokens of a batch are sequences of different lengths up to N, in a single tensor
without padding (`forward_packed`). Rows NAME@padded show the same sequences padded to the longest; the columns
`speedup_vs_padded` and `bytes_vs_padded` compare the two. Lengths: uniform, log-normal (median N/8, logarithmic
standard deviation 1), or one-long (one of N tokens, all others N/16).

Protocol paper: as released with CAB. Forward in training mode with dropout 0.3, wall clock without synchronization and
warm-up, mean of the middle half of 100 calls, peak memory over all lengths so far, including weights.

Protocol lra: Table 2 of Long Range Arena. Steps per second and memory of the two-layer byte classifier of task lra with
batch size 32 and lengths 1K to 4K. forward+backward is a training step with AdamW, forward is inference. Timed as in
protocol default, with dropout 0.

vanilla (fused) and eager (the paper's baseline) are always included. In pattern NS, attentions use the options of the
paper's Appendix G (window 16, 16 landmarks, ...), in other patterns their defaults. An attention that fails
`cab verify` is not timed. A module that runs out of memory (oom), exceeds --time-limit (timeout), raises an exception
(failed) or does not support a length (unsupported) has this status in the table, and the others are still measured.

examples:
  cab efficiency local:window_size=128 s4d --pattern NS CS --phase forward+backward --lengths 4096 8192
  cab efficiency performer linear --protocol lra --batch-size 2
  cab efficiency --third-party --out costs.csv --plot figures
  cab crossover costs.csv
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "attentions",
        nargs="*",
        metavar="NAME | FILE.py:Class | hf:TYPE",
        help="attentions with optional options, for example local:window_size=128, or modules of other packages as in "
        "`cab verify` (default: all attentions); "
        "place them before options that accept several values",
    )
    parser.add_argument("--pattern", nargs="+", default=["NS"], metavar="P", help="NS CS NC CC (default: NS)")
    parser.add_argument("--phase", nargs="+", choices=PHASES, help="default: forward (protocol lra: forward+backward)")
    parser.add_argument(
        "--lengths", nargs="+", type=int, metavar="N", help="default: 256 to 8192 (protocol lra: 1K to 4K)"
    )
    parser.add_argument("--packed", choices=PACKED, help="packed sequences with this distribution of lengths up to N")
    parser.add_argument("--batch-size", type=int, help="default: 4 (protocol lra: 32)")
    parser.add_argument("--embed-dim", type=int, help="default: 512 (protocol lra: 64)")
    parser.add_argument("--num-heads", type=int, help="default: 8 (protocol lra: 2)")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda if available")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument(
        "--repeats", type=int, help="number of rounds (default: 5 on a CPU, 20 on CUDA; protocol paper: 100 calls)"
    )
    parser.add_argument(
        "--time-limit",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="maximum time of all calls of a module at one length (default: 600)",
    )
    parser.add_argument("--protocol", choices=("default", "paper", "lra"), default="default")
    parser.add_argument(
        "--third-party",
        nargs="?",
        const="",
        metavar="FOLDER",
        help="include installed third-party implementations, built by the programs in FOLDER (default: "
        "benchmarks/third_party of the repository)",
    )
    parser.add_argument("--no-verify", action="store_true", help="skip the checks of `cab verify`")
    parser.add_argument("--shared-gpu", action="store_true", help="permit a GPU used by other processes")
    parser.add_argument(
        "--out", type=Path, metavar="CSV", help="write each cost to this file as soon as it is measured"
    )
    parser.add_argument("--csv", action="store_true", help="print CSV instead of tables")
    parser.add_argument("--plot", type=Path, metavar="DIR", help="write figures to this folder (PNG)")


def run(args: argparse.Namespace) -> int:
    if args.out:
        if args.out.is_dir():
            raise UserError(f"--out must be a file, got the folder {args.out}")
        check_writable(args.out.parent, "--out")
    if args.plot:
        check_writable(args.plot, "--plot")
    import torch

    from cab.efficiency.benchmark import Plan, measure, never
    from cab.efficiency.cost import write_costs
    from cab.efficiency.machine import refuse_when_shared
    from cab.efficiency.network import LENGTHS, SIZES
    from cab.efficiency.report import tables
    from cab.efficiency.setting import Setting, appendix_g
    from cab.efficiency.subjects import select_attentions
    from cab.efficiency.third_party import CHECKOUT, ThirdPartySubject, find_implementations
    from cab.patterns import Pattern
    from cab.reports.efficiency import plot

    paper = appendix_g()
    usual = paper | ({**SIZES, "lengths": LENGTHS} if args.protocol == "lra" else {})
    phases = args.phase or ["forward+backward" if args.protocol == "lra" else "forward"]
    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    repeats = paper["calls"] if args.protocol == "paper" else REPEATS[device]
    repeats = repeats if args.repeats is None else args.repeats
    given = {name: getattr(args, name) for name in ("batch_size", "embed_dim", "num_heads")}
    sizes = {name: usual[name] if size is None else size for name, size in given.items()}
    setting = Setting(
        **sizes,
        device=device,
        dtype=args.dtype,
        repeats=repeats,
        packed=args.packed or "",
        time_limit=args.time_limit,
    )
    if device == "cuda" and not args.shared_gpu:
        refuse_when_shared()
    patterns = list(dict.fromkeys(Pattern.parse(text) for text in args.pattern))
    attentions = select_attentions(args.attentions, patterns)
    others: list[ThirdPartySubject] = []
    notes: list[str] = []
    if args.third_party is not None:
        others, notes = find_implementations(attentions, Path(args.third_party or CHECKOUT))
    lengths = sorted(set(args.lengths or usual["lengths"]))
    plan = Plan(attentions, others, patterns, list(dict.fromkeys(phases)), lengths, setting, args.protocol)
    for note in notes:
        print_note(note)

    with contextlib.ExitStack() as files:
        costs = measure(plan, refuse=never if args.no_verify else verification(device, print_note), report=print_note)
        if args.out:
            args.out.parent.mkdir(parents=True, exist_ok=True)
            costs = write_costs(costs, files.enter_context(args.out.open("w", newline="")))
        if args.csv:
            costs = write_costs(costs, sys.stdout)
        found = []
        try:
            for cost in costs:
                found.append(cost)
        finally:  # an interrupted command shows what it has measured
            if found and not args.csv:
                print(tables(found))
    if args.out:
        print_note(f"wrote {args.out}")
    if args.plot:
        for path in plot(found, args.plot):
            print_note(f"wrote {path}")
    return 0


def verification(device: str, report: Callable[[str], None]) -> Callable[[AttentionSubject, Pattern], str]:
    """Return a function that runs the conformance suite, except for growth, and returns the reason of a failure.

    Attentions that do not support float32 on ``device`` are verified on the CPU. Known results for the CPU are reused.
    """
    from cab.records.verified import code_of, is_verified
    from cab.verification import verify_attention
    from cab.verification.foreign import ForeignModule
    from cab.verification.suite import GROUPS, ON_DEMAND, runs_in_float32

    groups = [group for group in GROUPS if group not in (*ON_DEMAND, "growth")]

    def reason(subject: AttentionSubject, pattern: Pattern) -> str:
        cls = subject.cls
        where = device if runs_in_float32(cls, device) else "cpu"
        if where == "cpu" and not subject.options and is_verified(code_of(cls), str(pattern)):
            return ""
        report(f"verifying {subject.label} {pattern}")
        target = cls if issubclass(cls, ForeignModule) else subject.name
        results = verify_attention(target, pattern, options=subject.options, checks=groups, device=where)
        failed = [result for result in results if not result.passed]
        return f"fails {', '.join(result.check for result in failed)}" if failed else ""

    return reason
