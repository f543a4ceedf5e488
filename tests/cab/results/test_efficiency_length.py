"""Efficiency lengths: the published one, curves with a known crossing, and inputs that have no answer."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import pytest
from scipy import optimize

from cab.records.files import PAPER_DIR
from cab.results.costs import load_costs
from cab.results.efficiency_length import ALWAYS, NEVER, Fit, efficiency_length

LENGTHS = (200, 500, 900, 2000, 3500, 8000)
Curve = Callable[[float], float]


def costs(time: dict[str, Curve], complexity: str = "n", lengths: Sequence[int] = LENGTHS) -> pd.DataFrame:
    rows = [(name, "CS", "decode", n, curve(n), 7.0 * n, complexity) for name, curve in time.items() for n in lengths]
    return pd.DataFrame(rows, columns=["attention", "pattern", "phase", "length", "seconds", "bytes", "complexity"])


def noisy(table: pd.DataFrame, deviation: float, seed: int = 3) -> pd.DataFrame:
    factors = 1 + deviation * np.random.default_rng(seed).normal(size=len(table))
    return table.assign(seconds=table["seconds"] * factors)


def time_of(found: pd.DataFrame) -> pd.Series:
    [(_, row)] = found[(found["attention"] == "abc") & (found["resource"] == "time")].iterrows()
    return row


def quadratic(n: float) -> float:
    return 2e-6 * n * n + 1e-3 * n + 3.0


def line(n: float) -> float:
    return 6e-3 * n + 13


def n_log_n(n: float) -> float:
    return 1e-3 * n * math.log2(n) + 2.0


TRUTH = 1250 + math.sqrt(1250**2 + 5e6)
"""Where 2e-6 n^2 + 1e-3 n + 3 = 6e-3 n + 13."""
OTHER_TRUTH = optimize.brentq(lambda n: quadratic(n) - n_log_n(n), 1000, 10_000)


def crossing() -> pd.DataFrame:
    return costs({"vanilla": quadratic, "abc": line})


@pytest.mark.parametrize(
    ("curves", "options", "protocol", "length", "note"),
    [
        ((quadratic, line), {}, "default", TRUTH, ""),
        ((quadratic, line), {}, "paper", round(TRUTH), ""),
        ((quadratic, n_log_n), {"complexity": "n log n"}, "default", OTHER_TRUTH, ""),
        ((quadratic, lambda n: 1e-3 * n), {}, "paper", ALWAYS, "the fitted curves do not intersect"),
        ((quadratic, lambda n: 0.5e-3 * n + 1), {}, "default", ALWAYS, ""),
        ((quadratic, lambda n: 3 * quadratic(n)), {"complexity": "n^2"}, "default", NEVER, ""),
        ((lambda n: 50 - 1e-7 * n * n, lambda n: n), {}, "paper", math.nan, "is concave"),
        ((quadratic, line), {"lengths": LENGTHS[:2]}, "default", math.nan, "undetermined: 2 measured"),
        ((quadratic, line), {"lengths": LENGTHS[:3]}, "default", math.nan, "undetermined: 3 measured"),
        ((quadratic, line), {"lengths": LENGTHS[:2]}, "paper", math.nan, "insufficient lengths"),
    ],
)
def test_a_length_that_is_known_or_that_the_costs_do_not_determine(curves, options, protocol, length, note):
    found = efficiency_length(costs(dict(zip(("vanilla", "abc"), curves, strict=True)), **options), protocol=protocol)
    row = time_of(found)
    assert row["length"] == pytest.approx(length, rel=1e-6, nan_ok=True)
    assert note in row["note"]
    assert length not in (ALWAYS, NEVER) or protocol == "paper" or row["low"] == row["high"] == length
    assert length != TRUTH or row["r2"] == pytest.approx(1, abs=0.001)
    assert found["pattern"].unique().tolist() == ["CS"]


def test_a_cost_of_zero_is_fitted_as_the_smallest_other():
    lengths = np.array(LENGTHS, float)
    values = np.where(lengths == LENGTHS[0], 0.0, lengths - LENGTHS[0])
    fit = Fit(lengths, values, [np.ones_like, lambda n: n])
    design = np.stack([np.ones_like(lengths), lengths], axis=1) / np.append(values[1], values[1:])[:, None]
    np.testing.assert_allclose(fit.coefficients[:, 0], optimize.nnls(design, [0.0] + [1.0] * 5)[0], atol=1e-9)


@pytest.mark.parametrize("scale", [2.0**-100, 2.0**100])
def test_the_scale_of_costs_does_not_matter(scale):
    table = noisy(crossing(), 0.01)
    scaled = efficiency_length(table.assign(seconds=table["seconds"] * scale))
    pd.testing.assert_frame_equal(scaled, efficiency_length(table), rtol=1e-6)


def test_intervals_cover_the_crossing():
    inside = []
    for repeat in range(8):
        row = time_of(efficiency_length(noisy(crossing(), 0.03, seed=repeat).assign(bytes=math.nan)))
        assert row["low"] <= row["length"] <= row["high"]
        inside.append(row["low"] <= TRUTH <= row["high"])
    assert sum(inside) >= 6


def test_eager_as_baseline_and_out_of_memory():
    table = costs({"vanilla": quadratic, "eager": lambda n: 4 * quadratic(n), "abc": line})
    table.loc[(table["attention"] == "eager") & (table["length"] > 3000), ["seconds", "bytes"]] = math.nan
    found = efficiency_length(table, baseline="eager")
    assert 0 < time_of(found)["length"] < time_of(efficiency_length(table))["length"]
    table.loc[table["attention"] == "abc", "seconds"] = math.nan
    row = time_of(efficiency_length(table))
    assert (math.isnan(row["length"]), row["note"]) == (True, "no time measured for abc")


def test_an_interval_from_always_to_never_has_no_length():
    table = crossing()
    noise = np.random.default_rng(0).lognormal(sigma=2.0, size=len(table))
    row = time_of(efficiency_length(table.assign(seconds=table["seconds"] * noise)))
    assert (row["low"], row["high"]) == (0.0, math.inf)
    assert math.isnan(row["length"])
    assert row["note"].startswith("undetermined")


def test_costs_of_either_form(tmp_path):
    head = "attention,pattern,phase,length,seconds,bytes,status,kind"
    rows = ["abc,CC,decode,256,0.5,1024,ok,attention", "abc,CC,decode,512,,,oom,attention"]
    (tmp_path / "costs.csv").write_text("\n".join([head, *rows, "x,CC,decode,512,1,1,ok,peer"]))
    found = load_costs(tmp_path / "costs.csv")
    assert found[["attention", "complexity"]].to_numpy().tolist() == [["abc", "n"]] * 2
    assert math.isnan(found["seconds"].iloc[1])
    (tmp_path / "costs.csv").write_text("attention , length, time_ms,memory_mib\nnull , 256.0, 2 ,\n")
    [row] = load_costs(tmp_path / "costs.csv").to_dict("records")
    assert (row["attention"], row["pattern"], row["length"], row["seconds"]) == ("null", "NS", 256, 0.002)


def test_settings_are_compared_apart(tmp_path):
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
