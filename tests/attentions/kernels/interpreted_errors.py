"""Errors of the kernels of flash-linear-attention under Triton's interpreter, relative to those of readable forms.

`TRITON_INTERPRET=1 python -m tests.attentions.kernels.interpreted_errors [NAME ...]` adds the rows that
results/efficiency/kernel_errors.csv lacks, one attention, width and length after the other. All of them take hours.
"""

import itertools
import sys

import pytest

from attentions.kernels import chunks
from cab.files.text_table import read_csv
from cab.verification.on_demand.kernels import LENGTHS, MARGIN, WIDTHS, agreements
from cab.verification.suite import subject_of
from tests.helpers.attentions.interpreter import interpret_fla, run_on_a_cpu
from tests.helpers.command import ROOT
from tools.gpu.supervisor import Row, write_table

TABLE = ROOT / "results" / "efficiency" / "kernel_errors.csv"
COLUMNS = ("attention", "pattern", "operation", "width", "tokens", "error", "own_error", "ratio", "where")
CAUSAL = (
    "deltanet", "ssd", "retention", "gla", "gated_deltanet", "kda", "comba", "gated_deltanet_2", "rwkv7",
    "deltaproduct", "forgetting", "abc",
)  # fmt: skip
SUBJECTS = dict.fromkeys(CAUSAL, "CS") | {"mla": "NS"}  # attentions that call every operation with such a kernel


def main() -> None:
    rows: list[Row] = [*read_csv(TABLE)]
    present = {(row["attention"], row["width"], row["tokens"]) for row in rows}
    with pytest.MonkeyPatch.context() as patch:
        interpret_fla(patch)
        patch.setattr(chunks, "CPU_TOKENS", chunks.DEVICE_TOKENS)  # so that a call has all tokens, as on a GPU
        for length, width, name in itertools.product(LENGTHS, WIDTHS, sys.argv[1:] or SUBJECTS):
            if (name, str(width), str(length)) in present:
                continue
            subject = subject_of(name, SUBJECTS[name], options={})  # imports its operations
            run_on_a_cpu("fla", patch)
            for found in agreements(subject, (width,), (length,)):
                own, ratio = found.limit / MARGIN, found.error * MARGIN / found.limit
                values = f"{found.error:.2e}", f"{own:.2e}", f"{ratio:.3g}", found.where.partition(",")[0]
                row = (name, SUBJECTS[name], found.operation, width, length, *values)
                rows.append(dict(zip(COLUMNS, row, strict=True)))
            write_table(TABLE, rows)


if __name__ == "__main__":
    main()
