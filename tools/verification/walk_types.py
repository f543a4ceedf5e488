"""Every causal model type of Transformers through the conformance suite: one row of a CSV file per type.

    python -m tools.verification.walk_types --out results/model_types.csv

The order is drawn, so a part of the table is a sample. Types with a row of this version are skipped: an interrupted
walk resumes. Each type has its own process and a limit of CPU time.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import importlib
import importlib.metadata
import multiprocessing
import os
import random
import resource
from pathlib import Path
from typing import Any

import torch

from cab.files.text_table import read_csv
from cab.verification import run_checks, select_checks, subject_of
from cab.verification.foreign import subject_class

COLUMNS = ("type", "result", "parameters", "failed", "layer", "detail", "checks", "transformers", "torch", "date")


def causal_types() -> list[str]:
    """Return the model types with a causal language model and a model without its head, in drawn order."""
    auto: Any = importlib.import_module("transformers.models.auto.modeling_auto")
    types = sorted({*auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES} & {*auto.MODEL_MAPPING_NAMES})
    return random.Random(0).sample(types, len(types))


def row_of(model_type: str, check_names: list[str] | None, seconds: int) -> dict[str, Any]:
    """Return the row of one type; a type in both mappings is tested as a decoder."""
    auto: Any = importlib.import_module("transformers.models.auto.modeling_auto")
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    is_encoder = model_type in auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    checks = select_checks(check_names, quick=True)
    row: dict[str, Any] = {"type": model_type, "checks": len(checks)}
    try:
        cls = subject_class(f"hf:{model_type}" + (":is_decoder=true" if is_encoder else ""))
        subject = subject_of(cls, "CS", options={})
        row["parameters"] = sum(x.numel() for x in subject.build().parameters())
        failed = [result for result in run_checks(subject, checks) if not result.passed]
    except (Exception, SystemExit) as error:
        return row | {"result": "does not build", "detail": f"{type(error).__name__}: {error}"[:200]}
    row |= {"result": "fails" if failed else "holds", "failed": " ".join(x.check for x in failed)}
    layer = next((result.guilty for result in failed if result.guilty), "")
    detail = failed[0].detail if failed else ""
    return row | {"layer": layer, "detail": detail.replace(str(Path(auto.__file__).parents[3]) + os.sep, "")[:200]}


def separately(*arguments: Any) -> dict[str, Any]:
    """Return the result of :func:`row_of` in a process of its own, which the limit of CPU time may end."""
    context = multiprocessing.get_context("fork")
    result, end = context.Pipe(duplex=False)
    process = context.Process(target=lambda: end.send(row_of(*arguments)))
    process.start()
    end.close()
    try:
        row: dict[str, Any] = result.recv()
    except EOFError:
        row = {"type": arguments[0], "result": "takes too long"}
    process.join()
    return row


def walk(path: Path, types: list[str], check_names: list[str] | None, seconds: int) -> None:
    """Append the row of every type that has none for this version."""
    now = {name: importlib.metadata.version(name) for name in ("transformers", "torch")}
    rows = read_csv(path) if path.is_file() else []
    done = {row["type"] for row in rows if row["transformers"] == now["transformers"]}
    subject_class("hf:llama")  # imports what all models need, before processes are forked
    with path.open("a", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if not file.tell():
            table.writeheader()
        for model_type in (x for x in types if x not in done):
            row = separately(model_type, check_names, seconds)
            table.writerow(row | now | {"date": datetime.datetime.now(datetime.UTC).date().isoformat()})
            file.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("types", nargs="*", help="model types (default: all causal types)")
    parser.add_argument("--out", type=Path, required=True, help="CSV file, to which rows are appended")
    parser.add_argument("--checks", nargs="*", help="checks or groups (default: the quick form)")
    parser.add_argument("--seconds", type=int, default=300, help="CPU seconds per type")
    args = parser.parse_args()
    torch.set_num_threads(1)
    walk(args.out, args.types or causal_types(), args.checks, args.seconds)


if __name__ == "__main__":
    main()
