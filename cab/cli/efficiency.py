"""`cab efficiency`: time and memory of attentions against length."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from cab.errors import UserError
from cab.files.folders import check_writable

if TYPE_CHECKING:
    from cab.efficiency.subjects import AttentionSubject
    from cab.patterns import Pattern

PHASES = ("forward", "forward+backward", "decode", "decode-graph")
REPEATS = {"cpu": 5, "cuda": 20}

EPILOG = """\
Protocol default: everything is warmed up and synchronised; in each round every module runs once, in a random order;
medians and the 10th and 90th percentile over rounds. On CUDA the time is that of the device between two events around
each call, with its second-level cache written over before; clocks, temperature and reasons for lower clocks are
columns, and a GPU that another process uses is refused. `relative_to_softmax` is the median of the ratios to vanilla in
the same
round: on a busy machine compare these, not milliseconds. Memory is the most that tensors held at once during a call,
above inputs and weights: on CUDA the allocator's peak, reset for each length; on a CPU the events of torch's
allocator, summed in time order (the scratch of BLAS and FFT libraries is not seen). Forward is evaluation without
gradients; forward+backward is training with dropout 0; decode is seconds for a token after a prefix of the length,
the mean of 64 tokens, and the bytes of the state; decode-graph the same where a token is one CUDA graph, for states of
constant size: without the time in which Python starts kernels, and with that of putting each state where the next token
finds it. Low precision is autocast; it casts the weights once for 64 tokens of decode, and for every graph.

The roof: operations are counted as a forward pass executes them (three times as many with backward, whatever is
computed again), a window's tiles whole, fused causal attention without the future. The least bytes are inputs, outputs,
weights and state, each once. The machine's rate of a large matrix product and of a copy is timed in every round; the
share is the least time that these allow, over the time taken. Columns flops, product_flops, least_bytes, moved_bytes,
roof, roof_share, matmul_rate, bandwidth.

Protocol paper: as released with CAB. Forward in training mode with dropout 0.3, wall clock without synchronisation
or warm-up, the mean of the middle half of 100 calls, one memory peak for all lengths so far, weights included.

Protocol lra: Table 2 of Long Range Arena. Steps a second and memory of the two-layer classifier of task lra on bytes,
one batch (32) at every length (1K to 4K), with the options of attentions there; forward+backward is a step of training,
with AdamW's update, forward is inference. Measured as in protocol default, dropout 0.

vanilla (fused) and eager (the paper's baseline) are always measured. In pattern NS plain names have the options of
the paper's appendix G (window 16, 16 landmarks, ...), in other patterns their own defaults. An attention that fails
`cab verify` is not timed. Running out of memory, or a length that a method refuses, is a status in the table.

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
        metavar="NAME | FILE.py:Class",
        help="attentions, each with options if wanted, as in local:window_size=128 (default: all); "
        "put them before options that take several values",
    )
    parser.add_argument("--pattern", nargs="+", default=["NS"], metavar="P", help="NS CS NC CC (default: NS)")
    parser.add_argument("--phase", nargs="+", choices=PHASES, help="default: forward; of protocol lra forward+backward")
    parser.add_argument(
        "--lengths", nargs="+", type=int, metavar="N", help="default: 256 to 8192; of protocol lra 1K to 4K"
    )
    parser.add_argument("--batch-size", type=int, help="default: 4; of protocol lra 32")
    parser.add_argument("--embed-dim", type=int, help="default: 512; of protocol lra 64")
    parser.add_argument("--num-heads", type=int, help="default: 8; of protocol lra 2")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda where torch sees a GPU")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--repeats", type=int, help="rounds (default: 5 on a CPU, 20 on CUDA; protocol paper 100)")
    parser.add_argument("--protocol", choices=("default", "paper", "lra"), default="default")
    parser.add_argument(
        "--third-party", action="store_true", help="also time other implementations of the same methods"
    )
    parser.add_argument("--no-verify", action="store_true", help="time without the checks of `cab verify`")
    parser.add_argument("--shared-gpu", action="store_true", help="time on a GPU that other processes use")
    parser.add_argument("--out", type=Path, metavar="CSV", help="write the costs there, as they are found")
    parser.add_argument("--csv", action="store_true", help="print CSV in place of tables")
    parser.add_argument("--plot", type=Path, metavar="DIR", help="write figures there, as PNG")


def run(args: argparse.Namespace) -> int:
    if args.out:
        if args.out.is_dir():
            raise UserError(f"--out: {args.out} is a folder; name a file")
        check_writable(args.out.parent, "--out")
    if args.plot:
        check_writable(args.plot, "--plot")
    import torch

    from cab.efficiency.benchmark import Plan, measure, never
    from cab.efficiency.cost import write_costs
    from cab.efficiency.gpu_state import refuse_when_shared
    from cab.efficiency.network import LENGTHS, SIZES
    from cab.efficiency.peers import find_peers
    from cab.efficiency.report import tables
    from cab.efficiency.setting import Setting, appendix_g
    from cab.efficiency.subjects import select_attentions
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
    setting = Setting(**sizes, device=device, dtype=args.dtype, repeats=repeats)
    if device == "cuda" and not args.shared_gpu:
        refuse_when_shared()
    patterns = list(dict.fromkeys(Pattern.parse(text) for text in args.pattern))
    attentions = select_attentions(args.attentions, patterns)
    peers, notes = find_peers(attentions) if args.third_party else ([], [])
    lengths = sorted(set(args.lengths or usual["lengths"]))
    plan = Plan(attentions, peers, patterns, list(dict.fromkeys(phases)), lengths, setting, args.protocol)
    for note in notes:
        progress(note)

    with contextlib.ExitStack() as files:
        costs = measure(plan, refuse=never if args.no_verify else verification(device, progress), report=progress)
        if args.out:
            args.out.parent.mkdir(parents=True, exist_ok=True)
            costs = write_costs(costs, files.enter_context(args.out.open("w", newline="")))
        if args.csv:
            costs = write_costs(costs, sys.stdout)
        found = list(costs)
    if not args.csv:
        print(tables(found))
    if args.out:
        progress(f"wrote {args.out}")
    if args.plot:
        for path in plot(found, args.plot):
            progress(f"wrote {path}")
    return 0


def verification(device: str, report: Callable[[str], None]) -> Callable[[AttentionSubject, Pattern], str]:
    """Runs the conformance suite, but for the growth of time, which is what this command is about.

    On ``device``, or on a CPU what does not work in float32 there; what is known to have passed on a CPU not again.
    """
    from cab.records.verified import code_of, is_verified
    from cab.registry.registries import ATTENTIONS
    from cab.verification import verify_attention
    from cab.verification.suite import GROUPS, ON_DEMAND, runs_in_float32

    groups = [group for group in GROUPS if group not in (*ON_DEMAND, "growth")]

    def reason(subject: AttentionSubject, pattern: Pattern) -> str:
        cls = ATTENTIONS.get(subject.name).cls
        where = device if runs_in_float32(cls, device) else "cpu"
        if where == "cpu" and not subject.options and is_verified(code_of(cls), str(pattern)):
            return ""
        report(f"verifying {subject.label} {pattern}")
        results = verify_attention(subject.name, pattern, options=subject.options, checks=groups, device=where)
        failed = [result for result in results if not result.passed]
        return f"fails {', '.join(result.check for result in failed)}" if failed else ""

    return reason


def progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
