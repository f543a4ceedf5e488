"""Every causal model type of Transformers through the conformance suite: one row of a CSV file per type.

    python -m tools.verification.walk_types --out results/model_types.csv

The order is drawn, so a part of the table is a sample. Types with a row of this version are skipped: an interrupted
walk resumes. Each type has its own process and a limit of CPU time. A type that is also an encoder is a decoder here.
"""

from __future__ import annotations

import argparse
import datetime
import multiprocessing
import os
import random
import resource
import textwrap
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers.models.auto import modeling_auto

from cab.files.text_table import read_csv
from cab.pytest_plugin import model_types
from cab.verification import run_checks, select_checks, subject_of
from cab.verification.foreign import subject_class
from tools.gpu.supervisor import Row, write_table

SECONDS = 700
"""CPU time of a type."""
COLUMNS = ("type", "result", "parameters", "failed", "layer", "detail", "checks", "transformers", "torch", "date")


def row_of(name: str) -> dict[str, Any]:
    """Return the row of one type."""
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    checks = select_checks(quick=True)
    row: dict[str, Any] = {"checks": len(checks)}
    try:
        is_encoder = name in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
        subject = subject_of(subject_class(f"hf:{name}" + ":is_decoder=true" * is_encoder), "CS", options={})
        row["parameters"] = sum(x.numel() for x in subject.build().parameters())
        failed = [result for result in run_checks(subject, checks) if not result.passed]
    except (Exception, SystemExit) as error:
        return row | {"result": "does not build", "detail": _short(f"{type(error).__name__}: {error}")}
    if not failed:
        return row | {"result": "holds"}
    installed = str(Path(str(modeling_auto.__file__)).parents[3]) + os.sep
    row |= {"layer": next((result.guilty for result in failed if result.guilty), "")}
    row |= {"detail": _short(failed[0].detail.replace(installed, ""))}
    return row | {"result": "fails", "failed": " ".join(result.check for result in failed)}


def _short(text: str) -> str:
    return textwrap.shorten(text, 200, placeholder=" …")


def separately(name: str) -> dict[str, Any]:
    """Return the result of :func:`row_of` in a process of its own, which the limit of CPU time may end."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        try:
            return pool.submit(row_of, name).result()
        except BrokenProcessPool:
            return {"result": "takes too long"}


def main() -> None:
    """Append the row of every type that has none for this version."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("types", nargs="*", help="model types (default: all causal types)")
    parser.add_argument("--out", type=Path, required=True, help="CSV file, to which rows are appended")
    args = parser.parse_args()
    torch.set_num_threads(1)
    now = {name: version(name) for name in ("transformers", "torch")}
    rows: list[Row] = [*read_csv(args.out)] if args.out.is_file() else []
    done = {row["type"] for row in rows if row["transformers"] == now["transformers"]}
    types = sorted(name.removeprefix("hf:") for name in model_types())
    subject_class("hf:llama")  # imports what all models need, before processes are forked
    for name in args.types or random.Random(0).sample(types, len(types)):
        if name not in done:
            date = datetime.datetime.now(datetime.UTC).date().isoformat()
            row = {"type": name, **separately(name), **now, "date": date}
            rows.append(dict.fromkeys(COLUMNS, "") | row)
            write_table(args.out, rows)


if __name__ == "__main__":
    main()
