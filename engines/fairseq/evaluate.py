"""fairseq's own score of a checkpoint, reported in addition to the task's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import cast

from cab.runner.cell import Cell
from engines.fairseq import environment
from engines.fairseq.command import task_arguments
from tasks.lm.task import LM
from tasks.mlm.task import MLM

LOSS = re.compile(r'Loss \(base 2\): ([^,]+),|"test_loss": "([^"]+)"')
"""In bits, as printed by `fairseq-eval-lm` and `fairseq-validate`."""


def fairseq_perplexity(cell: Cell, data: list[str], checkpoint: Path, log: Path) -> float:
    """Return the test perplexity of all tokens (`fairseq-eval-lm`) or of masked ones (`fairseq-validate`)."""
    task = cast(LM | MLM, cell.task)
    arguments = [*data, "--path", str(checkpoint), "--batch-size", str(task.evaluation_batch_size)]
    arguments += task_arguments(cell)
    if isinstance(task, LM):
        program, part = "fairseq-eval-lm", "--gen-subset"
    else:
        program, part = "fairseq-validate", "--valid-subset"
    found: list[str] = []
    environment.run(
        program,
        [*arguments, part, "test", "--log-format", "json"],
        log=log,
        watch=lambda line: found.extend(match[1] or match[2] for match in LOSS.finditer(line)),
    )
    return 2 ** float(found[-1])
