"""`cab evaluate`: score the kept weights of a run again, on fewer examples, another split or with other task options.

Examples:
  cab evaluate results/local/0123456789abcdef.json --limit 100
  cab evaluate results/local/0123456789abcdef.json 'task.context_lengths=[256,1024]'
  torchrun --nproc-per-node 4 -m cab evaluate results/local/0123456789abcdef.json --split validation
"""

from __future__ import annotations

import argparse
import logging
import shlex
from pathlib import Path

from cab.errors import UserError
from cab.files.disk import sanitize_text
from cab.files.text_table import text_table
from cab.records.files import kept_weights
from cab.records.identity import described, differences, hash_of
from cab.records.record import Record


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("result", type=Path, metavar="RESULT", help="record of a run whose weights were kept")
    parser.add_argument("options", nargs="*", metavar="task.OPTION=VALUE", help="other options of the task")
    parser.add_argument("--limit", type=int, metavar="N", help="number of examples (default: task.limit of the run)")
    parser.add_argument("--split", metavar="NAME", help="split to evaluate (default: test)")
    parser.add_argument("--data-root", metavar="FOLDER", help="folder of the data sets (default: that of the record)")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), help="device (default: that of the record)")


def run(args: argparse.Namespace) -> int:
    from cab.config.compose import parse_overrides
    from cab.runner.cell import Cell
    from cab.runner.engine import make_backbone, open_run, repeated_config
    from cab.runner.evaluation import evaluate
    from cab.runner.folder import lock_run_dir
    from cab.weights import load_network

    record = Record.read(args.result)
    weights = kept_weights(args.result)
    logging.getLogger().setLevel(logging.INFO)
    changes = {name: getattr(args, name) for name in ("data_root", "device") if getattr(args, name)}
    config = repeated_config(record, **changes)
    limit = [] if args.limit is None else [f"task.limit={args.limit}"]
    for override in parse_overrides([*args.options, *limit]):
        group, _, option = override.key_or_group.partition(".")
        if group != "task" or not option or override.is_sweep_override():
            raise UserError(f"'{override.input_line}' is not an option of the task; write task.OPTION=VALUE")
        config["task"] = {**config["task"], option: override.value()}
    run = open_run(Cell.from_config(config), shlex.join(["cab", "evaluate", str(args.result), *args.options]))
    task = run.cell.task
    if args.split is not None:
        if args.split not in task.split_names:
            names = ", ".join(task.split_names) or "none that can be chosen"
            raise UserError(f"task '{record.cell['task']}' has no split '{args.split}' (splits: {names})")
        task.test_split = args.split
    network = make_backbone(run.cell)
    load_network(network, weights)
    run.processes.connect(run.device)
    folder = weights.parent
    if not run.processes.is_first:
        evaluate(run.cell, network.to(run.device).eval(), run.device, run.processes, folder)
        return 0
    with lock_run_dir(folder) as is_ours:
        if not is_ours:
            raise UserError(f"another process uses {folder}; repeat the command when it has ended")
        network, key = network.to(run.device).eval(), f"-{hash_of(run.identity.to_plain())}"  # code and data can change
        scores = evaluate(run.cell, network, run.device, run.processes, folder, key=key)
        for file in folder.glob("scores-*.jsonl"):
            file.unlink()
    if task.test_split != type(task).test_split:
        print(f"split {task.test_split} instead of {type(task).test_split}")
    for kind, text in differences(record.identity(run.cell.renamed), run.identity).items():
        print(sanitize_text(described(kind, text)))
    recorded = {metric.name: metric.value for metric in record.metrics}
    rows = []
    for metric in task.metrics:
        values = recorded.get(metric.name), metric.measured(scores.get(metric.name)).value
        rows.append([metric.name, *("-" if x is None else f"{x:.6g}" for x in values), metric.unit])
    print(text_table(["metric", "recorded", "evaluated", "unit"], rows, align="lrrl"))
    return 0
