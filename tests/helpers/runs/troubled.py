"""A task that goes wrong as it is told, for the tests of the runner."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils.data import Dataset

from cab import Backbone, Task
from cab.records.record import Record
from cab.runner.run import run_cell
from cab.task import Batches, Metric


class Numbers(Dataset[Any]):
    """Items whose noise is drawn by torch: what a task's random views and crops are."""

    def __len__(self) -> int:
        return 12

    def __getitems__(self, indices: list[int]) -> Tensor:
        return torch.tensor(indices, dtype=torch.float32)[:, None] + torch.rand(len(indices), 1)


class Troubled(Task):
    """Fits the tokens' embedding to random targets until, at step ``at``, ``trouble`` happens."""

    trouble_now: ClassVar[str] = ""

    def __init__(self, *, dataset: str, at: int = 3) -> None:
        self.dataset, self.at = dataset, at
        self.calls = 0
        self.epochs: list[int] = []

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return (Metric("score", "", higher_is_better=True), Metric("total", "", higher_is_better=False, primary=False))

    def check(self) -> None:
        pass

    def setup(self, data_root: Path | None) -> None:
        pass

    def bind_config(self, cell: Mapping[str, Any]) -> None:
        self.results = Path(cell["results_dir"])

    def fingerprint(self) -> dict[str, Any]:
        return {"made": "for tests"}

    def backbone_options(self, backbone: str) -> dict[str, Any]:  # noqa: ARG002
        return {"vocab_size": 11, "embed_dim": 8, "num_heads": 2, "ffn_dim": 8, "num_layers": 1}

    @property
    def training_set(self) -> Numbers:
        return Numbers()

    def begin_epoch(self, backbone: Backbone, epoch: int) -> None:  # noqa: ARG002
        self.epochs.append(epoch)

    def loss(self, backbone: Backbone, batch: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == self.at:
            if self.trouble_now == "oom":
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB")
            if self.trouble_now == "crash":
                raise RuntimeError("something broke\nwith a second line")
            if self.trouble_now == "deleted":
                for folder in self.results.glob("*/"):
                    shutil.rmtree(folder)
            if self.trouble_now == "full":
                raise OSError(28, "No space left on device")
        loss = backbone(torch.tensor([[1, 2, 3]])).square().mean() * batch.mean()
        return loss * float("nan") if self.trouble_now == "nan" and self.calls == self.at else loss

    def validate(self, backbone: Backbone, batches: Batches) -> float:  # noqa: ARG002
        return float(self.loss(backbone, torch.ones(1)))

    def evaluate(self, backbone: Backbone, batches: Batches) -> dict[str, float]:  # noqa: ARG002
        return {"score": float(torch.rand(())), "total": float(next(backbone.parameters()).double().sum())}


def trained(config: dict[str, Any]) -> Record:
    """The record of a cell that is run, or found."""
    record = run_cell(config).record
    assert record is not None
    return record
