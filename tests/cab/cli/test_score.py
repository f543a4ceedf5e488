"""`cab score`, `correlation`, `efficiency-length` and `audit` as a person calls them."""

from __future__ import annotations

import io
import itertools
from pathlib import Path

import pandas as pd
import pytest

from cab.cli.main import main
from cab.errors import EXAMPLE_COMMAND
from cab.records.files import PAPER_DIR
from tests.helpers.made_records import make_record

COSTS = str(PAPER_DIR / "efficiency_cost.csv")
RAW = str(PAPER_DIR / "results.csv")


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """Three attentions, two data sets, three seeds, as `cab run` leaves them."""
    folder = tmp_path / "records"
    values = {"vanilla": 1.0, "abc": 1.02, "none": 4.0}
    for name, value in values.items():
        for place, dataset in enumerate(("etth1", "etth2")):
            for seed in range(3):
                metrics = {"mse": value + 0.05 * seed * (-1) ** place, "mse_all_windows": 9.0}
                cell = {"dataset": dataset, "config_variant": "M", "attention": name, "seed": seed}
                make_record(metrics, beside=["mse_all_windows"], **cell).write(folder)
    return folder


def csv_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> pd.DataFrame:
    assert main([*arguments, "--csv"]) == 0
    return pd.read_csv(io.StringIO(capsys.readouterr().out))


def test_score_as_a_table(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", str(records)]) == 0
    metrics, other, index = capsys.readouterr().out.split("\n\n")
    assert metrics.splitlines()[:3] == [
        "lstf etth1 M informer NC (mini)",
        "attention          mse  mse_all_windows  seeds",
        "vanilla    1.05 ± 0.05            9 ± 0      3",
    ]
    assert other.startswith("lstf etth2 M informer NC (mini)")
    lines = index.splitlines()
    assert lines[0].split() == ["NC", "lstf", "seeds"]
    assert lines[1].split()[:3] == ["vanilla", "~", "0.707"]
    assert lines[2].split()[:2] == ["abc", ">"]
    assert lines[4] == "  lstf: mse of informer etth1 M, informer etth2 M"
    assert main(["score", RAW, "--pattern", "CS", "--normalization", "official"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[-4].split() == ["vanilla", "-", "-0.026", "0.784", "-", "1"]
    assert "note: CS lm: no index for vanilla (NaN or inf: gpt2 pg19 ppl" in err


def test_ablation_requires_an_index(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["results/core"], [str(records), "--score", "metrics"]):
        assert main(["score", *arguments, "--show", "ablation"]) == 2
        assert "--show ablation requires an index" in capsys.readouterr().err


def test_published_results_have_no_version_of_their_own(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metrics = csv_of(capsys, "score", str(records), RAW, "--score", "metrics")
    assert set(metrics["preset"]) == {"mini", "published"}


def test_every_result_has_its_metrics_and_a_score_or_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two attentions, two tasks and two seeds on generated data outside the suite; one metric lacks a seed."""
    for task, backbone in (("lstf", "informer"), ("pcc", "pointr")):
        for name, seed in itertools.product(("vanilla", "abc"), (1, 2)):
            cell = {"task": task, "backbone": backbone, "attention": name, "seed": seed, "dataset": "synthetic"}
            value = None if (task, name, seed) == ("pcc", "abc", 2) else 0.5
            make_record({"mse": 1.0 + seed, "mae": value}, **cell, preset="paper").write(tmp_path)
    assert main(["score", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert ["vanilla", "2.5", "±", "0.71", "0.5", "±", "0", "2"] in [line.split() for line in out.splitlines()]
    assert [line.split() for line in out.splitlines() if "(1)" in line] == [
        ["abc", "2.5", "±", "0.71", "0.5", "(1)", "2"]
    ]
    for place in ("lstf synthetic multivariate informer NC", "pcc synthetic multivariate pointr NC"):
        assert f"note: paper {place}: no score: generated data outside the cells of the suite" in err
    assert main(["score", str(tmp_path), "--show", "pairwise"]) == 2
    assert "no score to show: paper lstf" in capsys.readouterr().err
    metrics = csv_of(capsys, "score", str(tmp_path))
    assert sorted(metrics["seeds"]) == [1, *[2] * 7]


def test_runs_with_other_settings_are_rows_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for steps, seed in itertools.product((100, 200), (1, 2)):
        record = make_record({"mse": float(steps + seed)}, seed=seed, config={"trainer": {"max_steps": steps}})
        record.write(tmp_path)
    assert main(["score", str(tmp_path), "--score", "metrics"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert [(row[1], row[-1]) for row in rows] == [("trainer.max_steps=100", "2"), ("trainer.max_steps=200", "2")]


def test_score_says_where_official_is_corrected(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", RAW, "--pattern", "NS", "--normalization", "official"]) == 0
    assert "mean of NS sum rougeL is 31.95889, not 31.96889" in capsys.readouterr().err
    assert main(["score", RAW, "--pattern", "CC", "--normalization", "official"]) == 0
    assert capsys.readouterr().err == ""


def test_score_shows_orders_and_benefit(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    orders = csv_of(capsys, "score", str(records), "--show", "pairwise")
    assert list(orders.columns) == ["pattern", "task", "better", "worse", "difference", "low", "high", "verdict"]
    assert orders["verdict"].tolist() == ["undecided", "better", "better"] * 2
    benefit = csv_of(capsys, "score", str(records), "--show", "ablation")
    assert benefit[["task", "best"]].to_numpy().tolist() == [["lstf", "abc"]]
    assert main(["score", str(records), "--show", "ablation"]) == 0
    assert capsys.readouterr().out.split()[:6] == list(benefit.columns)


def test_correlation(capsys: pytest.CaptureFixture[str]) -> None:
    pairs = csv_of(capsys, "correlation", RAW, "--normalization", "official")
    names = ["kind", "pattern", "a", "b", "pearson", "shared", "p_value", "low", "high", "note"]
    assert list(pairs.columns) == [*names, "source", "normalization"]
    assert pairs["kind"].value_counts().to_dict() == {"task": 11, "pattern": 6, "benchmark": 4}
    assert pairs[["source", "normalization"]].drop_duplicates().to_numpy().tolist() == [["recomputed", "official"]]
    assert main(["correlation", str(PAPER_DIR)]) == 0
    assert "1 shared attentions, at least 3 required" in capsys.readouterr().out
    assert main(["correlation", RAW]) == 2
    assert "no index is printed; --normalization official recomputes it" in capsys.readouterr().err


def test_published_correlations_are_those_of_the_printed_indices(capsys: pytest.CaptureFixture[str]) -> None:
    """They are equal in `cab correlation` and `cab paper figure3a`, and recomputed ones are named apart."""
    pairs = csv_of(capsys, "correlation", str(PAPER_DIR), "--normalization", "official")
    assert pairs["source"].value_counts().to_dict() == {"published": 21, "recomputed": 21}
    assert pairs.loc[pairs["source"] == "published", "normalization"].unique().tolist() == ["printed"]
    key = ["pattern", "a", "b"]
    printed = pairs[pairs["source"] == "published"].fillna({"pattern": ""}).set_index(key)["pearson"]
    for name in ("figure3a", "figure4"):
        assert main(["paper", name, "--format", "csv"]) == 0
        figure = pd.read_csv(io.StringIO(capsys.readouterr().out)).fillna({"pattern": ""}).set_index(key)["published"]
        assert figure.to_dict() == pytest.approx(printed.loc[figure.index].to_dict(), abs=5.1e-4, nan_ok=True)
    alone = csv_of(capsys, "correlation", str(PAPER_DIR))
    assert alone["source"].unique().tolist() == ["published"]


def test_the_correlation_of_cells_has_no_normalization(capsys: pytest.CaptureFixture[str]) -> None:
    pairs = csv_of(capsys, "correlation", "results/core")
    assert pairs["kind"].unique().tolist() == ["cell"]
    assert pairs[["source", "normalization"]].isna().all().all()


def test_own_and_published_results_in_one_call(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each source has the values that it has alone with the same constants; names and a column distinguish them."""
    sources = {"own": [str(records)], "published": [RAW], "both": [str(records), RAW]}
    made = {}
    for name, folders in sources.items():
        options = [] if name == "both" else ["--normalization", "official"]
        made[name] = [csv_of(capsys, "score", *folders, "--score", "index", *options)]
        made[name] += [csv_of(capsys, "correlation", *folders, *options)]
    for own, published, both in zip(made["own"], made["published"], made["both"], strict=True):
        for source, alone in (("own", own), ("published", published)):
            here = both[both["source"] == source][alone.columns]
            keys = [name for name in ("kind", "pattern", "task", "attention", "a", "b") if name in here]
            pd.testing.assert_frame_equal(
                *(frame.sort_values(keys, ignore_index=True).astype(str) for frame in (here, alone))
            )
    assert main(["score", str(records), RAW, "--score", "index"]) == 0
    assert "vanilla (published)" in capsys.readouterr().out


def test_efficiency_length(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lengths = csv_of(capsys, "crossover", COSTS, "--protocol", "paper")
    assert list(lengths.columns) == ["attention", "pattern", "phase", "resource", "length", "r2", "low", "high"]
    assert lengths[["resource", "length"]].to_numpy().tolist() == [["time", 1877], ["memory", 70]]
    assert main(["crossover", COSTS]) == 0
    assert "extrapolated beyond the measured 256 to 8,192" in capsys.readouterr().out
    lines = ["attention,pattern,phase,length,seconds,bytes,complexity"]
    for n in (256, 512, 1024, 2048, 4096):
        lines += [f"vanilla,NC,forward,{n},{n * n},{n * n},n^2", f"abc,NC,forward,{n},{n / 2},{9 * n},n"]
        lines += [f"eager,NC,forward,{n},{2 * n * n},{5 * n * n},n^2"]
    (tmp_path / "costs.csv").write_text("\n".join(lines))
    lengths = csv_of(capsys, "crossover", str(tmp_path / "costs.csv")).set_index(["attention", "resource"])
    assert lengths["length"].tolist() == ["always", "never", "9", "never"]
    assert main(["crossover", str(tmp_path / "costs.csv")]) == 0
    out = capsys.readouterr().out
    for baseline in ("vanilla", "eager"):
        assert f"length above which each attention is cheaper than {baseline}" in out


def test_audit(capsys: pytest.CaptureFixture[str]) -> None:
    audit = csv_of(capsys, "paper", "audit")
    names = ["table", "pattern", "task", "attention", "printed", "recomputed", "low", "high", "verdict"]
    assert (list(audit.columns), len(audit)) == (names, 210)
    assert main(["paper", "audit"]) == 0
    out = capsys.readouterr().out
    assert "the printed index requires ppl 31.53" in out
    assert all(name in out for name in ("official", "paper", "results"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["score", "EMPTY"], f"run a cell first, for example: `{EXAMPLE_COMMAND}`"),
        (["score", "EMPTY/nothing"], "EMPTY/nothing does not exist: name a folder of records"),
        (["score", "RECORDS", "--score", "K"], "no score to show: the results have index; use --score"),
        (["score", RAW, "--preset", "mini"], "no result has preset 'mini' (available: published)"),
        (
            ["score", "RECORDS", "--csv", "--normalization", "papers"],
            "unknown normalization 'papers': did you mean 'paper'",
        ),
        (["correlation", "EMPTY"], "no valid result in EMPTY;"),
        (["crossover", "EMPTY/costs.csv"], "no cost file at"),
        (["crossover", COSTS, "--baseline", "eager"], "unknown baseline 'eager'"),
        (["crossover", COSTS, "--protocol", "other"], "unknown protocol 'other'"),
        (["paper", "audit", "--normalization", "none"], "unknown normalization 'none'"),
        (["reproduce", "RECORDS", "--tolerance", "nan"], "--tolerance must be at least 0, got nan"),
    ],
)
def test_mistakes_are_one_clear_line(
    arguments: list[str], message: str, records: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    words = (*arguments, message)
    *filled, expected = (
        word.replace("EMPTY", str(tmp_path / "empty")).replace("RECORDS", str(records)) for word in words
    )
    assert main(filled) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert expected in err
    assert err.startswith("cab: error: ")
    assert err.count("\n") == 1


def test_broken_records_are_left_out_with_a_warning(
    records: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    (records / "broken.json").write_text('{"schema": 2, "hash')
    assert main(["score", str(records), "--csv"]) == 0
    assert "broken.json is not a valid result record" in caplog.text
    out, err = capsys.readouterr()
    found = pd.read_csv(io.StringIO(out))
    assert list(found.columns) == ["pattern", "task", "attention", "index", "low", "high", "seeds", "verified"]
    assert found["seeds"].tolist() == [3] * 6
    assert "note: NC lstf averages mse of informer etth1 M, informer etth2 M" in err
