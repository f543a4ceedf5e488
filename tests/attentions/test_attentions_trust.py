"""What may be left out because it passed before: the same code, the same checks, the same torch, and nothing else."""

import dataclasses

from cab.records import verified
from cab.records.verified import COMMITTED, VerifiedRow, read_rows, write_rows
from tests.helpers.attentions.trust import pairs_to_run, subjects

PAIRS = subjects()


def test_only_rows_of_today_are_trusted_and_some_are_drawn_again(tmp_path):
    """No row, or one of the quick form where the whole is wanted, and the pair runs; a seed draws others."""
    path, pair = tmp_path / "verified.csv", ("vanilla", "CS")
    rows = [VerifiedRow.of_today(*of, subject, quick=False, reach={}) for of, subject in PAIRS.items()]
    write_rows(path, rows)
    assert pairs_to_run(quick=True, path=path, seed="1") == {}
    by_seed = [pairs_to_run(quick=False, path=path, seed=str(seed)) for seed in range(120)]
    assert {reason for runs in by_seed for reason in runs.values()} == {"drawn"}
    assert 0.5 * len(PAIRS) < sum(map(len, by_seed)) < 2 * len(PAIRS)
    write_rows(path, [row for row in rows if (row.attention, row.pattern) != pair])
    assert pairs_to_run(quick=True, path=path, seed="1") == {pair: "new"}
    write_rows(path, [dataclasses.replace(row, mode=verified.QUICK) for row in rows])
    assert pairs_to_run(quick=True, path=path, seed="1") == {}
    assert pairs_to_run(quick=False, path=path, seed="1") == dict.fromkeys(PAIRS, "new")


def test_committed_rows_are_of_registered_pairs():
    """After an attention is renamed or taken out, so are its rows."""
    committed = [(row.attention, row.pattern) for row in read_rows(COMMITTED)]
    assert len(set(committed)) == len(committed)
    assert set(committed) <= set(PAIRS)
