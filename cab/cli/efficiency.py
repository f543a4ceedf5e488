"""`cab efficiency`: time and memory of attentions by sequence length.

vanilla (fused) and eager (the paper's baseline) are always included. In pattern NS, attentions use the options of the
paper's Appendix G (window 16, 16 landmarks, ...), in other patterns their defaults. An attention that fails
`cab verify` is not timed. The guide "Cost" describes phases, protocols and tables.

examples:
  cab efficiency abc local:window_size=128 --pattern NS,CS --phase forward+backward --lengths 4096 8192
  cab efficiency performer linear --protocol lra --batch-size 2
  cab efficiency abc --pattern CS --phase prefill decode --batch-size 1 8 64 --lengths 1024 8192 32768
  cab efficiency --third-party --out costs.csv --plot figures
  cab crossover costs.csv
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from cab.cli.arguments import add_pattern
from cab.cli.terminal import print_note
from cab.efficiency.cost import Cost, write_costs
from cab.errors import UserError, first_line
from cab.files.disk import check_writable, replacing
from cab.patterns import Pattern

if TYPE_CHECKING:
    from cab.efficiency.benchmark import Plan
    from cab.efficiency.subjects import AttentionSubject

PHASE_CHOICES = ("forward", "forward-graph", "forward+backward", "prefill", "decode", "decode-graph")
BACKENDS = ("pytorch", "triton", "fla", "flex", "flash", "cudnn", "efficient")
DISTRIBUTIONS = ("uniform", "log-normal", "one-long")
REPEATS = {"cpu": 5, "cuda": 20}  # fewer on a CPU, where a call takes longer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "cab efficiency [NAME ...] [--pattern P[,P]] [--phase PHASE ...] [--lengths N ...] [options]"
    parser.add_argument(
        "attentions",
        nargs="*",
        metavar="NAME",
        help="local:window_size=128, FILE.py:Class or another name of `cab verify` (default: all attentions)",
    )
    add_pattern(parser, "NS, CS, NC or CC (default: NS)", nargs="+", default=(Pattern.NS,))
    phases = f"{', '.join(PHASE_CHOICES)} (default: forward)"
    parser.add_argument("--phase", nargs="+", choices=PHASE_CHOICES, metavar="PHASE", help=phases)
    parser.add_argument("--lengths", nargs="+", type=int, metavar="N", help="default: 256 to 8192, in powers of 2")
    parser.add_argument("--packed", choices=DISTRIBUTIONS, help="measure packed sequences with these lengths up to N")
    parser.add_argument("--batch-size", nargs="+", type=int, metavar="N", help="default: 4")
    for name, default in (("--embed-dim", 512), ("--num-heads", 8)):
        parser.add_argument(name, type=int, metavar="N", help=f"default: {default}")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda if available")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--repeats", type=int, metavar="N", help="number of rounds (default: 5 on a CPU, 20 on CUDA)")
    limit = "time for all calls of a module at one length (default: 600)"
    parser.add_argument("--time-limit", type=float, default=600.0, metavar="SECONDS", help=limit)
    protocol = "as published, with sizes, lengths and phase of paper or lra"
    parser.add_argument("--protocol", choices=("default", "paper", "lra"), default="default", help=protocol)
    third_party = "include implementations of other packages (default: tools/benchmarks/third_party of the repository)"
    parser.add_argument("--third-party", nargs="?", const="", metavar="FOLDER", help=third_party)
    backends = f"also measure each attention with one backend: {', '.join(BACKENDS)}"
    parser.add_argument("--kernels", nargs="+", choices=BACKENDS, default=[], metavar="NAME", help=backends)
    parser.add_argument("--compile", action="store_true", help="measure modules compiled with torch.compile")
    against = "compare with this table of an earlier `cab efficiency --out`"
    parser.add_argument("--against", type=Path, metavar="CSV", help=against)
    parser.add_argument("--no-verify", action="store_true", help="skip the checks of `cab verify`")
    parser.add_argument("--shared-gpu", action="store_true", help="permit a GPU used by other processes")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="CSV",
        help="write each cost to this file as soon as it is measured; an existing file is replaced at the end",
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
    from cab.efficiency.benchmark import measure
    from cab.efficiency.cost import Former
    from cab.efficiency.gpu import refuse_when_shared
    from cab.efficiency.report import tables

    former = Former.read(args.against) if args.against else None
    plans = _plans(args)
    device = plans[0].setting.device
    if device == "cuda" and not args.shared_gpu:
        refuse_when_shared()
    measured: list[Cost] = []
    is_new = args.out and not args.out.is_file()
    with contextlib.ExitStack() as files:
        refuse = (lambda *_: "") if args.no_verify else _verification(device)
        costs: Iterator[Cost] = chain.from_iterable(measure(plan, refuse=refuse, report=print_note) for plan in plans)
        costs = map(_kernel_checks(plans, runs=not args.no_verify), costs)
        if former:
            costs = map(former.compare, costs)
        if is_new:
            args.out.parent.mkdir(parents=True, exist_ok=True)
            costs = write_costs(costs, files.enter_context(args.out.open("w", newline="")))
        if args.csv:
            costs = write_costs(costs, sys.stdout)
        try:
            for cost in costs:
                measured.append(cost)
        finally:  # an interrupted command shows what it has measured
            if measured and not args.csv:
                print(tables(measured))
    if former and (note := former.differences(measured)):
        print_note(note)
    if args.out:
        if not is_new:
            with replacing(args.out) as temporary, temporary.open("x", newline="") as file:
                list(write_costs(measured, file))
        print_note(f"wrote {args.out}")
    if args.plot:
        from cab.efficiency.curves import plot

        for path in plot(measured, args.plot):
            print_note(f"wrote {path}")
    return 0


def _plans(args: argparse.Namespace) -> list[Plan]:
    """Return what to measure, one plan per batch size, with the defaults of the protocol."""
    import torch

    from cab.efficiency.benchmark import Plan
    from cab.efficiency.network import NETWORK_LENGTHS, NETWORK_SIZES
    from cab.efficiency.setting import Setting, appendix_g
    from cab.efficiency.subjects import BASELINES, FUSED, select_attentions
    from cab.efficiency.third_party import CHECKOUT, ThirdPartySubject, find_implementations

    is_lra = args.protocol == "lra"
    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    defaults = appendix_g() | ({**NETWORK_SIZES, "lengths": NETWORK_LENGTHS} if is_lra else {})
    defaults["repeats"] = defaults["calls"] if args.protocol == "paper" else REPEATS[device]
    chosen = {name: value for name, value in vars(args).items() if value is not None}
    sizes = {name: (defaults | chosen)[name] for name in ("embed_dim", "num_heads", "repeats")}
    sizes |= {"device": device, "dtype": args.dtype, "packed": args.packed or "", "time_limit": args.time_limit}
    sizes["compile"] = args.compile
    patterns = list(args.pattern)
    attentions = select_attentions(args.attentions, patterns)
    others: list[ThirdPartySubject] = []
    notes: list[str] = []
    if args.third_party is not None:
        others, notes = find_implementations(attentions, Path(args.third_party or CHECKOUT))
    for note in notes:
        print_note(note)
    fused = FUSED if device == "cuda" and args.protocol != "paper" else ()
    for subject in tuple(attentions):
        names = [] if subject.label in BASELINES and subject.label not in args.attentions else args.kernels
        names = dict.fromkeys([*(fused if subject.label == BASELINES[0] else ()), *names])
        after = attentions.index(subject) + 1
        attentions[after:after] = map(subject.on, names)
    phases = list(dict.fromkeys(args.phase or ["forward+backward" if is_lra else "forward"]))
    lengths = sorted(set(args.lengths or defaults["lengths"]))
    settings = [
        Setting(batch_size, **sizes) for batch_size in dict.fromkeys(args.batch_size or [defaults["batch_size"]])
    ]
    return [Plan(attentions, others, patterns, phases, lengths, setting, args.protocol) for setting in settings]


def _verification(device: str) -> Callable[[AttentionSubject, Pattern], str]:
    """Return a function that runs the conformance suite, except for growth, and returns the reason of a failure.

    Attentions that do not support float32 on ``device`` are verified on the CPU. Known results for the CPU are reused.
    """
    from cab.records.verified import is_verified
    from cab.registry.program import code_of
    from cab.verification import verify_attention
    from cab.verification.foreign import ForeignModule
    from cab.verification.suite import GROUPS, ON_DEMAND, runs_in_float32

    groups = [group for group in GROUPS if group not in (*ON_DEMAND, "growth")]
    known: dict[tuple[str, Pattern], str] = {}

    def reason(subject: AttentionSubject, pattern: Pattern) -> str:
        key = (subject.label.removesuffix(f"@{subject.backend}"), pattern)
        if key not in known:
            known[key] = verified(subject, pattern)
        return known[key]

    def verified(subject: AttentionSubject, pattern: Pattern) -> str:
        cls = subject.cls
        where = device if runs_in_float32(cls, device) else "cpu"
        if where == "cpu" and not subject.options and is_verified(code_of(cls), str(pattern)):
            return ""
        print_note(f"{subject.label} {pattern} has not passed `cab verify`: verifying it first (skip with --no-verify)")
        target = cls if issubclass(cls, ForeignModule) else subject.name
        results = verify_attention(target, pattern, options=subject.options, checks=groups, device=where)
        failed = [result.check for result in results if not result.passed]
        return f"fails {', '.join(failed)}" if failed else ""

    return reason


def _kernel_checks(plans: Sequence[Plan], *, runs: bool) -> Callable[[Cost], Cost]:
    """Return a function that names the backends of a cost that have not passed check group ``kernels``.

    If it ``runs`` the checks, it does so for an attention and pattern when they are first measured with a backend.
    """
    from cab.kernels import REFERENCE
    from cab.verification.on_demand.kernels import agreements
    from cab.verification.suite import subject_of

    subjects = {subject.label: subject for plan in plans for subject in plan.attentions}
    known: dict[tuple[str, str], dict[str, str]] = {}

    def refusals(subject: AttentionSubject, pattern: str) -> dict[str, str]:
        """Return why each backend that was checked did not pass; empty if it did."""
        key = (subject.label.removesuffix(f"@{subject.backend}"), pattern)
        if key not in known:
            print_note(f"{key[0]} {pattern}: checking its kernels (skip with --no-verify)")
            worst: dict[str, str] = {}
            try:
                checked = subject_of(subject.cls, pattern, options=subject.options, device=plans[0].setting.device)
                for found in agreements(checked):
                    name = f"{found.operation}={found.backend}"
                    error = f"error {found.error:.1e} > {found.limit:.1e}"
                    worst[name] = worst.get(name) or ("" if found.passed else f"{error}, {found.where}")
            except Exception as error:  # it concerns one attention only
                print_note(f"{key[0]} {pattern}: {first_line(error)}")
            known[key] = worst
        return known[key]

    def checked(cost: Cost) -> Cost:
        ran = re.findall(r"(?:^|; )(\w+)=([\w+]+)", cost.backends)
        names = [f"{operation}={name}" for operation, by in ran for name in by.split("+") if name != REFERENCE]
        if not names:
            return cost
        passed = refusals(subjects[cost.attention], cost.pattern) if runs and cost.attention in subjects else {}
        reasons = {name: passed.get(name, "not checked") for name in names}
        unchecked = "; ".join(f"{name} ({reason})" for name, reason in reasons.items() if reason)
        return dataclasses.replace(cost, unchecked=unchecked)

    return checked
