"""Results of the suite, by cell and attention."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cab.errors import UserError
from cab.records.record import REFERENCE_DIRS, Record, Status
from cab.records.results import whole_records
from cab.suite.anchors import ATTENTIONS, Anchors, data_hash, read_anchors, record_key
from cab.suite.cells import Key, SuiteCell, suite_cells


@dataclass
class CellResults:
    """Results of one cell.

    Attributes:
        anchors: the frozen anchors; None if the cell has none.
        runs: finished runs by attention and seed. The anchors' own runs are not among them.
        baselines: values of the trivial baselines, by name.
        left_out: reason why a record of an attention is excluded, by attention.
    """

    cell: SuiteCell
    anchors: Anchors | None
    runs: dict[str, dict[int, Record]] = field(default_factory=dict)
    baselines: dict[str, float] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether no finished run is of this cell, not even of an anchor."""
        return not self.runs and not self.baselines

    @property
    def attentions(self) -> list[str]:
        """The anchors, if there are any, and the attentions with results."""
        return [*(ATTENTIONS if self.anchors else ()), *self.runs]

    def values(self, attention: str) -> list[float]:
        """Return the values of the cell's metric, one per seed."""
        if attention in ATTENTIONS:
            return self.anchors.test[attention] if self.anchors else []
        return [self.cell.value(record) for record in self.runs[attention].values()]

    def add(self, record: Record) -> None:
        """Add a record of this cell.

        Raises:
            ValueError: there is another result of the same attention and seed.
        """
        attention, seed = record.cell["attention"], record.cell["seed"]
        if record.status is not Status.FINISHED:
            self.left_out[attention] = f"seed {seed} is {record.status}"
        elif self.anchors and self.anchors.data != data_hash(record):
            self.left_out[attention] = f"seed {seed} has other data or another task version than the suite's anchors"
        else:
            for name, metrics in record.baselines.items():
                value = metrics.get(self.cell.metric)
                if value is not None:
                    self.baselines[name] = value
            if attention not in ATTENTIONS:
                known = self.runs.setdefault(attention, {}).setdefault(seed, record)
                if self.cell.value(known) != self.cell.value(record):
                    raise UserError(
                        f"two results of {attention} with seed {seed} in {self.cell} ({known.hash} and {record.hash}); "
                        "remove one, or move it to another folder"
                    )


def collect(records: Iterable[Record]) -> list[CellResults]:
    """Return the results of each cell of the suite in ``records``."""
    anchors = read_anchors()
    found: dict[Key, CellResults] = {cell.key: CellResults(cell, anchors.get(cell.key)) for cell in suite_cells()}
    for record in records:
        results = found.get(record_key(record))
        if results and results.cell.includes(record):
            results.add(record)
    return list(found.values())


def read_suite(folders: Sequence[Path]) -> list[CellResults]:
    """Return the results of each cell in folders of records; damaged or modified records are skipped with a warning.

    Raises:
        ValueError: a folder does not exist; :data:`REFERENCE_DIRS` may lack one.
    """
    return collect(records_of(folders))


def records_of(folders: Sequence[Path]) -> Iterator[Record]:
    """Yield the records in folders, see :func:`read_suite`."""
    for folder in folders:
        if folder.is_dir():
            yield from (record for _, record in whole_records(folder, skipped=[]))
        elif folder not in REFERENCE_DIRS:
            raise UserError(f"no results at {folder}; pass a folder of results, such as results/local")
