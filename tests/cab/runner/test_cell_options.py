"""Options can be added, renamed and removed, and every committed record is still found."""

import shutil
import textwrap

import pytest

from tests.helpers.command import ROOT, run_python

PACKAGES = ("cab", "attentions", "backbones", "tasks", "engines", "cab_fairseq", "configs")
EDITS = [
    ("backbones/gpt2.py", "ffn_dim: int = 3072,", "ffn_dim: int = 3072,\n        rope_base: float = 10000.0,"),
    ("attentions/abc.py", "num_landmarks", "num_slots"),
    ("attentions/local.py", '        extent: Literal["total", "per_side"] = "total",\n', ""),
    ("attentions/local.py", 'total = extent == "total"', "total = True"),
]
PROGRAM = """
    from cab.records.files import COMMITTED_DIRS
    from cab.records.record import records_in
    from cab.registry.registries import ATTENTIONS, BACKBONES
    from cab.runner.cell import Cell, current_config

    records = [record for folder in COMMITTED_DIRS for _, record in records_in(folder, [])]
    cells = [Cell.from_config(current_config(record)) for record in records]
    print(len(records), sum(cell.hash == record.hash for cell, record in zip(cells, records)))
    abc, local = (ATTENTIONS.get(name).options for name in ("abc", "local"))
    print("rope_base" in BACKBONES.get("gpt2").options, "num_slots" in abc, "extent" not in local)
"""


@pytest.mark.slow
def test_every_committed_record_is_found_with_other_options(tmp_path):
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.glob("results/*/records.jsonl"):
        (tmp_path / path.relative_to(ROOT)).parent.mkdir(parents=True)
        shutil.copyfile(path, tmp_path / path.relative_to(ROOT))
    for name, old, new in EDITS:
        text = (tmp_path / name).read_text()
        assert old in text
        (tmp_path / name).write_text(text.replace(old, new))
    found, changed = run_python("-c", textwrap.dedent(PROGRAM), cwd=tmp_path, root=tmp_path).stdout.splitlines()[-2:]
    assert len(set(found.split())) == 1, found
    assert set(changed.split()) == {"True"}, "an edit without effect"
