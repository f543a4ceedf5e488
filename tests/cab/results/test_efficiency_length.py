"""Efficiency lengths: the published one, curves with a known crossing, and inputs that have no answer."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import optimize

from cab import UserError
from cab.files.numbers import LARGEST
from cab.records.files import PAPER_DIR
from cab.results.costs import load_costs
from cab.results.efficiency_length import ALWAYS, NEVER, Fit, efficiency_length

LENGTHS = (200, 500, 900, 2000, 3500, 8000)
Curve = Callable[[float], float]


def costs(time: dict[str, Curve], complexity: dict[str, str] | None = None, noise: float = 0.0) -> pd.DataFrame:
    random = np.random.default_rng(3)
    rows = [
        (name, "CS", "decode", n, curve(n) * (1 + noise * random.normal()), 7.0 * n, (complexity or {}).get(name, "n"))
        for name, curve in time.items()
        for n in LENGTHS
    ]
    return pd.DataFrame(rows, columns=["attention", "pattern", "phase", "length", "seconds", "bytes", "complexity"])


def time_of(found: pd.DataFrame, attention: str = "abc") -> pd.Series:
    rows = found[(found["attention"] == attention) & (found["resource"] == "time")]
    assert len(rows) == 1
    return rows.iloc[0]


def quadratic(n: float) -> float:
    return 2e-6 * n * n + 1e-3 * n + 3.0


TRUTH = 1250 + math.sqrt(1250**2 + 5e6)
"""Where 2e-6 n^2 + 1e-3 n + 3 = 6e-3 n + 13."""


def crossing(noise: float = 0.0) -> pd.DataFrame:
    """Costs of curves that cross at ``TRUTH``."""
    return costs({"vanilla": quadratic, "abc": lambda n: 6e-3 * n + 13}, noise=noise)


def test_table_11_from_the_published_costs() -> None:
    found = efficiency_length(load_costs(PAPER_DIR / "efficiency_cost.csv"), protocol="paper")
    assert found[["attention", "pattern", "phase", "resource"]].to_numpy().tolist() == [
        ["abc", "NS", "forward", "time"],
        ["abc", "NS", "forward", "memory"],
    ]
    assert found["length"].tolist() == [1877, 70]
    assert found["r2"].tolist() == pytest.approx([0.964, 1.0], abs=1e-9)  # cut: rounding would give 0.965
    assert found[["low", "high"]].isna().all().all()


@pytest.mark.parametrize("protocol", ["default", "paper"])
def test_a_crossing_that_is_known(protocol: str) -> None:
    found = efficiency_length(crossing(), protocol=protocol)
    assert time_of(found)["length"] == pytest.approx(TRUTH, rel=1e-3 if protocol == "paper" else 1e-6)
    assert time_of(found)["r2"] == pytest.approx(1, abs=0.001)
    assert found["pattern"].unique().tolist() == ["CS"]


def test_the_paper_leaves_the_shortest_length_out_of_the_time_of_the_other_attention_only() -> None:
    table = crossing()
    first = (table["attention"] == "abc") & (table["length"] == 200)
    table.loc[first, "seconds"] *= 3
    spoilt = efficiency_length(table, protocol="paper")
    assert time_of(spoilt)["length"] == round(TRUTH)
    table.loc[(table["attention"] == "vanilla") & (table["length"] == 200), "seconds"] *= 3
    assert time_of(efficiency_length(table, protocol="paper"))["length"] != time_of(spoilt)["length"]


def test_n_log_n_is_fitted_as_what_it_is() -> None:
    def curve(n: float) -> float:
        return 1e-3 * n * math.log2(n) + 2.0

    table = costs({"vanilla": quadratic, "s4d": curve}, {"s4d": "n log n"})
    expected = optimize.brentq(lambda n: quadratic(n) - curve(n), 1000, 10_000)
    assert time_of(efficiency_length(table), "s4d")["length"] == pytest.approx(expected, rel=1e-6)
    line = efficiency_length(table.assign(complexity="n"))
    assert abs(time_of(line, "s4d")["length"] / expected - 1) > 0.01


def test_never_and_always() -> None:
    curves: dict[str, Curve] = {
        "vanilla": quadratic,
        "abc": lambda n: 0.5e-3 * n + 1,
        "eager": lambda n: 3 * quadratic(n),
        "flash": lambda n: 1e-6 * n * n + 5.0,
    }
    found = efficiency_length(costs(curves, {"eager": "n^2", "flash": "n^2"}, noise=0.001))
    assert time_of(found)["length"] == ALWAYS
    assert time_of(found)["high"] == ALWAYS
    assert time_of(found, "eager")["length"] == NEVER
    assert time_of(found, "eager")["low"] == NEVER
    assert 900 < time_of(found, "flash")["length"] < 1100  # 1e-6 n^2 + 1e-3 n = 2


def test_a_cost_of_zero_is_fitted_as_the_smallest_other() -> None:
    lengths = np.array(LENGTHS, float)
    values = np.where(lengths == LENGTHS[0], 0.0, lengths - LENGTHS[0])
    fit = Fit(lengths, values, [np.ones_like, lambda n: n])
    design = np.stack([np.ones_like(lengths), lengths], axis=1) / np.append(values[1], values[1:])[:, None]
    np.testing.assert_allclose(fit.coefficients[:, 0], optimize.nnls(design, [0.0] + [1.0] * 5)[0], atol=1e-9)


@pytest.mark.parametrize("protocol", ["default", "paper"])
@pytest.mark.parametrize("scale", [2.0**-100, 2.0**100])
def test_the_scale_of_costs_does_not_matter(scale: float, protocol: str) -> None:
    found = efficiency_length(crossing(noise=0.01), protocol=protocol)
    scaled = efficiency_length(
        crossing(noise=0.01).assign(seconds=lambda table: table["seconds"] * scale), protocol=protocol
    )
    pd.testing.assert_frame_equal(scaled, found, rtol=1e-6)


@pytest.mark.parametrize("extreme", [5e-324, 1e-300, LARGEST])
def test_an_extreme_cost_does_not_overflow(extreme: float) -> None:
    table = crossing()
    table.loc[(table["attention"] == "abc") & (table["length"] == LENGTHS[0]), "seconds"] = extreme
    assert 0 <= time_of(efficiency_length(table))["length"] <= NEVER


def test_a_length_that_the_measurements_contradict_says_so() -> None:
    wrong = costs({"vanilla": quadratic, "abc": lambda n: 2 * quadratic(n)})  # declared linear
    row = time_of(efficiency_length(wrong))
    assert 0 < row["length"] < 8000
    assert "measured more expensive at 8,000" in row["note"]
    published_note = time_of(efficiency_length(load_costs(PAPER_DIR / "efficiency_cost.csv"), protocol="paper"))["note"]
    assert published_note == "measured cheaper from 512"
    table = crossing()
    table.loc[table["attention"] == "abc", "seconds"] = 1.0 + table["length"] * 0.005
    assert "measured" not in time_of(efficiency_length(table))["note"]


def test_the_paper_has_no_answer_for_a_baseline_that_bends_down_and_always_for_curves_that_do_not_meet() -> None:
    found = efficiency_length(costs({"vanilla": lambda n: 50 - 1e-7 * n * n, "abc": lambda n: n}), protocol="paper")
    assert math.isnan(time_of(found)["length"])
    assert "is concave" in time_of(found)["note"]
    apart = efficiency_length(costs({"vanilla": quadratic, "abc": lambda n: 1e-3 * n}), protocol="paper")
    assert time_of(apart)["length"] == ALWAYS


def test_intervals_cover_the_crossing() -> None:
    inside = []
    for repeat in range(8):
        random = np.random.default_rng(repeat)
        table = crossing().assign(bytes=math.nan)
        table["seconds"] *= 1 + 0.03 * random.normal(size=len(table))
        row = time_of(efficiency_length(table))
        assert row["low"] <= row["length"] <= row["high"]
        inside.append(row["low"] <= TRUTH <= row["high"])
    assert sum(inside) >= 6


def test_eager_as_baseline_and_out_of_memory() -> None:
    table = costs({"vanilla": quadratic, "eager": lambda n: 4 * quadratic(n), "abc": lambda n: 6e-3 * n + 13})
    oom = (table["attention"] == "eager") & (table["length"] > 3000)
    table.loc[oom, ["seconds", "bytes"]] = math.nan
    found = efficiency_length(table, baseline="eager")
    assert 0 < time_of(found)["length"] < time_of(efficiency_length(table))["length"]
    table.loc[table["attention"] == "abc", "seconds"] = math.nan
    row = time_of(efficiency_length(table))
    assert math.isnan(row["length"])
    assert row["note"] == "no time measured for abc"


def test_too_few_lengths() -> None:
    table = crossing()
    for protocol in ("default", "paper"):
        row = time_of(efficiency_length(table[table["length"] < 600], protocol=protocol))
        assert math.isnan(row["length"])
        assert row["note"].startswith("undetermined: 2 measured" if protocol == "default" else "insufficient lengths")
    assert math.isnan(time_of(efficiency_length(table[table["length"] < 1200]))["length"])


def test_an_interval_from_always_to_never_has_no_length() -> None:
    table = crossing()
    noise = np.random.default_rng(0).lognormal(sigma=2.0, size=len(table))
    row = time_of(efficiency_length(table.assign(seconds=table["seconds"] * noise)))
    assert (row["low"], row["high"]) == (0.0, math.inf)
    assert math.isnan(row["length"])
    assert row["note"].startswith("undetermined")


def test_a_complexity_that_does_not_exist() -> None:
    with pytest.raises(UserError, match=r"unknown complexity 'n\^3'"):
        efficiency_length(crossing().assign(complexity="n^3"))


HEAD = "attention,pattern,phase,length,seconds,bytes"


def test_costs_of_our_own_form(tmp_path: Path) -> None:
    rows = [
        "abc,CC,decode,256,0.5,1024,ok,attention",
        "abc,CC,decode,512,,,oom,attention",
        "x,CC,decode,512,1,1,ok,peer",
    ]
    (tmp_path / "costs.csv").write_text("\n".join([f"{HEAD},status,kind", *rows]))
    found = load_costs(tmp_path / "costs.csv")
    assert found["attention"].tolist() == ["abc", "abc"]
    assert found["complexity"].tolist() == ["n", "n"]
    assert math.isnan(found["seconds"].iloc[1])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "contains no costs"),
        (f"{HEAD}\n", "contains no costs"),
        (f"{HEAD},kind\nabc,NS,forward,256,1,1,peer\n", "contains no costs"),
        ("attention,length\nabc,5\n", "line 2: no column bytes, pattern, phase, seconds; required"),
        ("attention,length,time_ms\nabc,5,1\n", "line 2: no column bytes"),
        (f"{HEAD}\nabc,NS,forward,256,fast,1\n", "line 2: seconds must be a finite number .* got 'fast'"),
        (f"{HEAD}\nabc,NS,forward,256,1,1\nabc,NS,forward,512,-1,1\n", "line 3: seconds must be .* got '-1'"),
        (f"{HEAD}\nabc,NS,forward,256,nan,1\n", "seconds must be a finite number of at least 0, or empty"),
        (f"{HEAD}\nabc,NS,forward,256,1_0,1\n", "seconds must be .* got '1_0'"),
        (f"{HEAD}\nabc,NS,forward,256,1,1e400\n", "bytes must be .* got '1e400'"),
        (f"{HEAD}\nabc,NS,forward,256,1e39,1\n", "seconds must be .* got '1e39'"),
        (f"{HEAD}\nabc,NS,forward,-256,1,1\n", "length must be .* got '-256'"),
        (f"{HEAD}\nabc,NS,forward,0,1,1\n", "line 2: the length must be a positive whole number"),
        (f"{HEAD}\nabc,NS,forward,25.6,1,1\n", "line 2: the length must be a positive whole number .* got '25.6'"),
        (f"{HEAD}\nabc,NS,forward,,1,1\n", "line 2: no length"),
        (f"{HEAD}\n ,NS,forward,1,1,1\n", "line 2: no attention"),
        (f"{HEAD}\nabc,NS,,1,1,1\n", "line 2: no phase"),
        (f"{HEAD}\nabc,XX,forward,1,1,1\n", "line 2: the pattern must be one of NS, CS, NC, CC, got 'XX'"),
        (f"{HEAD}\nabc,NS,forward,256,1\n", "line 2: 5 values for 6 columns"),
        (f"{HEAD}\nabc,NS,forward,256,1,1,,\n", "line 2: 8 values for 6 columns"),
        (f"{HEAD}, bytes\nabc,NS,forward,256,1,1,1\n", "line 1: the column 'bytes' occurs more than once"),
        (f"{HEAD}\n" + "abc,NS,forward,256,1,1\n" * 2, "line 3: the costs of line 2 again; remove one of them"),
        (f'{HEAD}\n"abc,NS,forward,256,1,1\n', "cannot be read as CSV"),
    ],
)
def test_costs_that_are_none(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "costs.csv").write_text(text)
    with pytest.raises(UserError, match=message):
        load_costs(tmp_path / "costs.csv")


def test_spaces_around_values_are_no_part_of_them(tmp_path: Path) -> None:
    (tmp_path / "costs.csv").write_text("attention , length, time_ms,memory_mib\nnull , 256.0, 2 ,\n")
    [row] = load_costs(tmp_path / "costs.csv").to_dict("records")
    assert (row["attention"], row["pattern"], row["length"], row["seconds"]) == ("null", "NS", 256, 0.002)
    assert math.isnan(row["bytes"])


def test_settings_are_compared_apart(tmp_path: Path) -> None:
    """Rows of another protocol are left out; each device has a length of its own, as if it were alone."""
    apart = {device: crossing().assign(device=device, protocol="default") for device in ("cpu", "cuda")}
    apart["cuda"]["seconds"] = 2 * apart["cuda"]["seconds"] - apart["cuda"]["length"] * 1e-4
    other = crossing().assign(device="cpu", protocol="lra", seconds=1.0)
    pd.concat([*apart.values(), other]).to_csv(tmp_path / "costs.csv", index=False)
    costs = load_costs(tmp_path / "costs.csv", protocol="default")
    assert costs["setting"].unique().tolist() == ["device cpu", "device cuda"]
    found = efficiency_length(costs)
    assert len(load_costs(tmp_path / "costs.csv", protocol="paper")) == len(costs) + len(other)
    for device, table in apart.items():
        alone = efficiency_length(table)
        here = found[found["setting"] == f"device {device}"].drop(columns="setting").reset_index(drop=True)
        pd.testing.assert_frame_equal(here, alone.drop(columns="setting"))
    assert found["length"].nunique() > 1


def test_own_and_published_costs_together() -> None:
    bundled, published = PAPER_DIR.parent / "efficiency" / "costs.csv", PAPER_DIR / "efficiency_cost.csv"
    found = efficiency_length(load_costs(bundled, published, protocol="paper"), protocol="paper")
    alone = efficiency_length(load_costs(published), protocol="paper")
    of_published = found[found["setting"] == str(published)]
    assert of_published["length"].tolist() == alone["length"].tolist()
    assert found.loc[found["setting"] == f"{bundled}, run ns", "length"].notna().sum() > 10
