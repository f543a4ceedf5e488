import io
import itertools
import re

import pandas as pd
import pytest

from cab.metric import Metric
from cab.records.files import PAPER_DIR
from cab.records.record import Record, RunCost, Status
from cab.results.index import INDEX_COLUMNS
from tests.helpers.made_records import make_about, make_record

COSTS = str(PAPER_DIR / "efficiency_cost.csv")
PAPER = str(PAPER_DIR)
OF_RESULTS = ("--normalization", "results")


@pytest.fixture
def records(tmp_path):
    """Three attentions, two data sets, three seeds, as `cab run` leaves them, of a task that Table 3 does not have."""
    folder = tmp_path / "records"
    values = {"vanilla": 1.0, "abc": 1.02, "none": 4.0}
    for name, (sign, dataset), seed in itertools.product(values, ((1, "etth1"), (-1, "etth2")), range(3)):
        metrics = {"mse": values[name] + sign * 0.05 * seed, "mse_all_windows": 9.0}
        cell = {"task": "mine", "dataset": dataset, "config_variant": "M", "attention": name, "seed": seed}
        make_record(metrics, unscored=["mse_all_windows"], **cell).write(folder)
    return folder


def csv_of(cab, *arguments: str) -> pd.DataFrame:
    return pd.read_csv(io.StringIO(cab(*arguments, "--csv").out))


def test_score_as_a_table(records, cab):
    metrics, other, index = cab("score", str(records), *OF_RESULTS).out.split("\n\n")
    assert metrics.splitlines()[:3] == [
        "mine etth1 M informer NC (mini)",
        "attention          mse  mse_all_windows  seeds",
        "vanilla    1.05 ± 0.05            9 ± 0      3",
    ]
    assert other.startswith("mine etth2 M informer NC (mini)")
    caption, header, vanilla, abc, _, legend, *_ = index.splitlines()
    assert caption == "compositional index; own: mean and sample standard deviation over the given results"
    assert header.split() == ["NC", "mine", "seeds"]
    assert vanilla.split()[:3] == ["vanilla", "~", "0.707"]
    assert abc.split()[:2] == ["abc", ">"]
    assert legend == "  mine: mse of informer etth1 M, informer etth2 M"
    partial = cab("score", records, "--score", "metrics", "--partial")
    assert "note: --partial has no effect: no index is printed" in partial.err


def test_published_indices_are_printed_and_recomputed_on_request(cab):
    out, err = cab("score", PAPER, "--pattern", "CS")
    caption, header, *lines = out.split("\n\n")[-1].splitlines()
    assert caption == "compositional index; published: as printed"
    assert header.split() == ["CS", "all", "tts", "sum", "lm", "seeds"]
    assert lines[-1].split() == ["vanilla", "-", "-0.047", "0.784", "-", "-"]
    assert "official" not in out + err
    out, err = cab("score", PAPER, "--pattern", "CS", "--normalization", "official")
    lines = [re.sub(r" \(.*?\)+ ", " ", line).split() for line in out.splitlines() if "published)" in line]
    assert ["vanilla", "-", "-0.047", "0.784", "-", "-"] in lines
    recomputed = [line.split() for line in out.splitlines() if line.startswith("vanilla (recomputed")]
    assert [line[-5:] for line in recomputed] == [["-", "-0.026", "0.784", "-", "-"]]
    assert "note: CS lm: no index for vanilla (not given in the paper: gpt2 pg19 ppl" in err
    corrected = "mean of NS sum rougeL is 31.95889, not 31.96889"
    assert corrected not in err
    assert corrected in cab("score", PAPER, "--pattern", "NS", "--normalization", "official").err


def test_every_result_has_its_metrics_and_a_score_or_the_reason(tmp_path, cab):
    """Two attentions, two tasks and two seeds on generated data outside the suite; one metric lacks a seed."""
    for task, backbone in (("lstf", "informer"), ("pcc", "pointr")):
        for name, seed in itertools.product(("vanilla", "abc"), (1, 2)):
            cell = {"task": task, "backbone": backbone, "attention": name, "seed": seed, "dataset": "synthetic"}
            value = None if (task, name, seed) == ("pcc", "abc", 2) else 0.5
            make_record({"mse": 1.0 + seed, "mae": value}, **cell, preset="paper").write(tmp_path)
    out, err = cab("score", str(tmp_path))
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "vanilla 2.5 ± 0.71 0.5 ± 0 2" in lines
    assert [line for line in lines if "(1)" in line] == ["abc 2.5 ± 0.71 0.5 (1) 2"]
    for place in ("lstf synthetic multivariate informer NC", "pcc synthetic multivariate pointr NC"):
        assert f"note: paper {place}: no score: generated data outside the cells of the suite" in err
    assert "no score to show: paper lstf" in cab("score", str(tmp_path), "--show", "pairwise", status=2).err
    metrics = csv_of(cab, "score", str(tmp_path))
    assert sorted(metrics["seeds"]) == [1, *[2] * 7]


def test_a_lost_seed_has_one_number_and_one_text_in_every_form(tmp_path, cab):
    """Seeds with 30 and 32 and a diverged one: 31 of 2 seeds, and no index."""
    own, out = tmp_path / "own", tmp_path / "out"
    cell = {"task": "sum", "dataset": "multi_news", "config_variant": "", "backbone": "transformer"}
    cell |= {"pattern": "CS", "preset": "paper"}
    metrics = [Metric(f"rouge{name}", "", higher_is_better=True) for name in "12L"]
    for seed, value in enumerate((30.0, 32.0)):
        make_record([metric.measured(value) for metric in metrics], seed=seed, **cell).write(own)
    about = make_about(seed=2, **cell)
    lost = {"error": FloatingPointError("NaN"), "step": 3, "cost": RunCost(), "status": Status.DIVERGED}
    Record.failed(about, metrics=metrics, **lost).write(own)
    text = "1 of 3 without a score (diverged)"

    score = csv_of(cab, "score", str(own), "--score", "metrics").set_index("metric").loc["rouge1"]
    assert (score["mean"], score["seeds"], score["missing"]) == (31, 2, text)
    index = csv_of(cab, "score", str(own), "--score", "index").set_index("task").loc["sum"]
    assert (pd.isna(index["index"]), index["seeds"]) == (True, 0)
    assert index["missing"].startswith(text)
    table3 = pd.read_csv(io.StringIO(cab("paper", "table3", str(own), "--format", "csv").out))
    values = table3.query("task == 'sum' and attention == 'vanilla' and pattern == 'CS'").set_index("metric")
    assert values.loc["rouge1", ["own", "seeds"]].tolist() == [31, 2]
    assert values.loc[["rouge1", "index"], "missing"].str.contains(text, regex=False).all()
    assert pd.isna(values.loc["index", "own"])
    cab("leaderboard", str(own), "--out", str(out))
    [board] = pd.read_csv(out / "leaderboard.csv").to_dict("records")
    column = "sum/multi_news/transformer.rouge1"
    assert (board[column], board[f"{column}.seeds"], board["seeds"]) == (31, 2, 2)
    assert text in board["missing"]
    assert text in (out / "index.html").read_text()
    shown = cab("leaderboard", str(own), "--format", "latex").out
    assert r"31 $\pm$ 1.4" in shown
    assert text in shown.replace("\\", "")
    assert text in cab("score", str(own), "--score", "metrics").err


def test_score_shows_orders_and_benefit(records, cab):
    orders = csv_of(cab, "score", str(records), "--show", "pairwise", *OF_RESULTS)
    assert " ".join(orders) == "pattern task better worse difference low high verdict source normalization"
    assert orders["verdict"].tolist() == ["undecided", "better", "better"] * 2
    benefit = csv_of(cab, "score", str(records), "--show", "ablation", *OF_RESULTS)
    assert benefit[["task", "best"]].to_numpy().tolist() == [["mine", "abc"]]
    assert cab("score", str(records), "--show", "ablation", *OF_RESULTS).out.split()[:6] == list(benefit.columns)[:6]


def test_correlation(cab):
    note = "note: nothing to correlate: two patterns, or two tasks of a pattern, must have an index; name more\n"
    assert cab("correlation", PAPER, "--task", "lstf") == ("", note)
    pairs = csv_of(cab, "correlation", PAPER, "--normalization", "official")
    of_set = pairs.columns.drop(["source", "normalization"])
    assert " ".join(of_set) == "kind pattern a b pearson shared p_value low high note"
    for _, rows in pairs.groupby(["source", "normalization"], dropna=False):
        assert rows["kind"].value_counts().to_dict() == {"task": 11, "pattern": 6, "benchmark": 4}
    stamps = pairs[["source", "normalization"]].fillna("").drop_duplicates().itertuples(index=False, name=None)
    assert set(stamps) == {("published", ""), ("recomputed", "printed"), ("recomputed", "official")}
    out = cab("correlation", PAPER).out
    assert "1 shared attention, at least 3 required" in out
    rows = [re.split(r"\s{2,}", line) for line in out.splitlines() if line.startswith("all      NS - CS")]
    assert [row[2:4] for row in rows] == [["recomputed (printed indices)", "0.38"], ["published", "0.68"]]


def test_own_and_published_results_in_one_call(records, cab):
    """Each source has the values that it has alone; names and a column distinguish them."""
    for command in (["score", "--score", "index"], ["correlation"]):
        own, published, both = (
            csv_of(cab, command[0], *sources, *command[1:], *OF_RESULTS)
            for sources in ([str(records)], [PAPER], [str(records), PAPER])
        )
        alone = pd.concat([own, published])
        keys = [name for name in ("kind", "source", "pattern", "task", "attention", "a", "b") if name in both]
        frames = (frame[both.columns].sort_values(keys, ignore_index=True) for frame in (both, alone))
        pd.testing.assert_frame_equal(*frames, check_dtype=False)
    assert "vanilla (published)" in cab("score", str(records), PAPER, "--score", "index").out
    metrics = csv_of(cab, "score", str(records), PAPER, "--score", "metrics")
    found = metrics[["source", "preset", "seeds"]].drop_duplicates().fillna(0).to_numpy().tolist()
    assert found == [["own", "mini", 3], ["published", "published", 0]]


def test_lengths_above_which_attentions_are_cheaper(tmp_path, cab):
    lines = ["attention,pattern,phase,length,seconds,bytes,complexity"]
    for n in (256, 512, 1024, 2048, 4096):
        lines += [f"vanilla,NC,forward,{n},{n * n},{n * n},n^2", f"abc,NC,forward,{n},{n / 2},{9 * n},n"]
        lines += [f"eager,NC,forward,{n},{2 * n * n},{5 * n * n},n^2"]
    (tmp_path / "costs.csv").write_text("\n".join(lines))
    lengths = csv_of(cab, "crossover", str(tmp_path / "costs.csv"))
    assert list(lengths.columns) == ["attention", "pattern", "phase", "resource", "length", "r2", "low", "high"]
    assert lengths["length"].tolist() == ["always", "never", "9", "never"]
    out = cab("crossover", str(tmp_path / "costs.csv"), COSTS).out
    assert "extrapolated beyond the measured 256 to 8,192" in out
    for baseline in ("vanilla", "eager"):
        assert f"length above which each attention is cheaper than {baseline}" in out


def test_broken_records_are_left_out_with_a_warning(records, caplog, cab):
    (records / "broken.json").write_text('{"schema": 2, "hash')
    printed = cab("score", str(records), *OF_RESULTS, "--csv")
    assert "broken.json is not a valid result record" in caplog.text
    assert list(printed.rows[0]) == INDEX_COLUMNS
    assert [row["seeds"] for row in printed.rows] == ["3"] * 6
    assert "note: NC mine averages mse of informer etth1 M, informer etth2 M" in printed.err
