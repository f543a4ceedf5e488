"""Settings of runs of preset `paper` that are not the published ones."""

import pytest

from cab.config.compose import compose
from cab.records.record import Record
from cab.results.changed_settings import with_changed
from cab.results.verdict import frame_of
from cab.runner.cell import Cell
from tests.helpers.made_records import make_record, result, table


@pytest.mark.parametrize(
    ("overrides", "changed"),
    [
        ("task=lm dataset=pg19 pattern=CS", []),
        ("task=lm dataset=wikitext103 pattern=CS attention=transnormer_t1", []),
        ("task=lstf dataset=etth1 pattern=NS task.features=S", []),
        (
            "task=mlm dataset=pg19 pattern=NS task.tokenizer=null backbone.num_layers=2",
            ["backbone.num_layers=2", "task.tokenizer=null"],
        ),
        ("task=lm dataset=pg19 pattern=CS other_attention=abc", ["other_attention=abc"]),
        ("task=lm dataset=pg19 pattern=CS task.limit=5", ["task.limit=5"]),
    ],
)
def test_settings_are_compared_with_the_published_ones(overrides, changed):
    assert with_changed(frame_of([paper_record(overrides)]))["changed"].tolist() == [tuple(changed)]


def paper_record(overrides: str) -> Record:
    config = compose(["attention=abc", *overrides.split(), "preset=paper"])
    return make_record({"ppl": 1.0}, config=config, **Cell.from_config(config).key)


def test_results_of_other_presets_and_printed_values_have_none():
    frame = table(result(1.0), result(1.0, preset="published", hash="", config=None))
    assert with_changed(frame)["changed"].tolist() == [(), ()]


def test_runs_with_other_settings_are_named_and_marked(tmp_path, cab):
    for options in ("", " attention=local task.tokenizer=null"):
        paper_record(f"task=lm dataset=pg19 pattern=CS{options}").write(tmp_path)
    shown = cab("score", tmp_path, "--normalization", "official")
    assert "local ‡ " in shown.out
    assert "CS lm pg19 gpt2: local ‡ not comparable with the paper (task.tokenizer=null)" in shown.err
    assert "abc ‡" not in shown.out + shown.err
