"""Efficiency lengths: the published one, curves with a known crossing, and inputs that have no answer."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import optimize

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


@pytest.mark.parametrize("scale", [2.0**-100, 2.0**100])
def test_the_scale_of_costs_does_not_matter(scale: float) -> None:
    table = crossing(noise=0.01)
    scaled = efficiency_length(table.assign(seconds=table["seconds"] * scale))
    pd.testing.assert_frame_equal(scaled, efficiency_length(table), rtol=1e-6)


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


def test_costs_of_either_form(tmp_path: Path) -> None:
    head = "attention,pattern,phase,length,seconds,bytes,status,kind"
    rows = ["abc,CC,decode,256,0.5,1024,ok,attention", "abc,CC,decode,512,,,oom,attention"]
    (tmp_path / "costs.csv").write_text("\n".join([head, *rows, "x,CC,decode,512,1,1,ok,peer"]))
    found = load_costs(tmp_path / "costs.csv")
    assert found[["attention", "complexity"]].to_numpy().tolist() == [["abc", "n"]] * 2
    assert math.isnan(found["seconds"].iloc[1])
    (tmp_path / "costs.csv").write_text("attention , length, time_ms,memory_mib\nnull , 256.0, 2 ,\n")
    [row] = load_costs(tmp_path / "costs.csv").to_dict("records")
    assert (row["attention"], row["pattern"], row["length"], row["seconds"]) == ("null", "NS", 256, 0.002)


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
    together = load_costs(tmp_path / "costs.csv", published := PAPER_DIR / "efficiency_cost.csv")
    lengths = efficiency_length(together, protocol="paper")
    assert lengths.loc[lengths["setting"] == str(published), "length"].tolist() == [1877, 70], "as in Table 11"
