"""The page on validity: answers of committed and hand-made results, the test of rank agreement, simulated verdicts."""

import itertools
import shutil

import numpy as np
import pandas as pd
import pytest

from tools.validity import simulate_statistics as simulation, validity


@pytest.mark.slow
def test_the_page_has_the_answers_of_the_committed_results(tmp_path, monkeypatch):
    """If this fails, run ``python -m tools.validity.validity``."""
    committed = validity.PAGE.read_text()
    shutil.copytree(validity.RESULTS, tmp_path / "results")
    (tmp_path / "none").mkdir()
    (tmp_path / "page.md").write_text(validity.BLOCK.sub("", committed))
    monkeypatch.setattr(validity, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(validity, "RESULTS", tmp_path / "results")
    validity.main([str(tmp_path / "none")])
    assert (tmp_path / "page.md").read_text() == committed
    for path in validity.RESULTS.glob("*.csv"):
        assert path.read_text() == (tmp_path / "results" / path.name).read_text(), path.name


def series(errors: dict[tuple[str, str], float]) -> pd.DataFrame:
    rows = [
        (dataset, pattern, attention, seed, error * (1 + seed / 100), 0.5, 0.7)
        for dataset in ("a", "b")
        for (attention, pattern), error in errors.items()
        for seed in (1, 2, 3)
    ]
    columns = ["dataset", "pattern", "attention", "seed", "mse", "ridge_mse", "repeat_last_day_mse"]
    return pd.DataFrame(rows, columns=columns)


def test_answers_on_series():
    errors = {("vanilla", "NC"): 0.6, ("none", "NS"): 0.5, ("none", "CS"): 0.6, ("none", "NC"): 0.9}
    answer, rows = validity.answer_series(series(errors))
    assert "NS **no** (-17%" in answer
    assert "CS **undecided** (+0%" in answer
    assert "NC **yes** (+50%" in answer
    assert "linear forecast? **No**." in answer
    assert rows[0][:3] == ["`a`", "0.612 ± 0.006", "0.510 ± 0.005"]
    assert "linear forecast? **Yes**." in validity.answer_series(series({**errors, ("vanilla", "NC"): 0.3}))[0]
    assert "linear forecast? **Mixed**." in validity.answer_series(series({**errors, ("vanilla", "NC"): 0.49}))[0]


# --- rank agreement -------------------------------------------------------------------------------------------------


def test_one_cell_equals_the_exact_permutation_test():
    x, y = [1.0, 2.0, 3.0, 4.0, 5.0], [1.0, 3.0, 2.0, 5.0, 4.0]
    observed, p_value = validity.rank_test({"NS": (pd.DataFrame(x), pd.DataFrame(y))}, draws=999)
    exact = [np.cov(each, y)[0, 1] for each in itertools.permutations(x)]
    assert observed == pytest.approx(np.cov(x, y)[0, 1])
    assert p_value == pytest.approx(np.mean(np.array(exact) >= observed - 1e-9), abs=0.03)


def test_missing_scores_are_left_out():
    one, other = pd.DataFrame({"a": [1.0, 2.0, np.nan], "b": [1.0, np.nan, np.nan]}), pd.DataFrame({"a": [5, 7, 1.0]})
    assert validity.rank_test({"CS": (one, other.assign(b=[1.0, 2.0, 3.0]))}, draws=9)[0] == pytest.approx(0.5)


def test_cells_with_the_same_scores_are_no_further_evidence():
    """The attentions are permuted with all their cells."""
    x, y = np.random.default_rng(2).standard_normal((2, 6))

    def tested(cells: str) -> tuple[float, float]:
        one, other = (pd.DataFrame(dict.fromkeys(cells, each)) for each in (x, y))
        return validity.rank_test({"NS": (one, other)}, draws=199)

    covariance, p_value = tested("a")
    assert tested("ab") == (2 * covariance, p_value)


# --- error rates and power of verdicts, with few draws --------------------------------------------------------------

KNOWN = [simulation.Truth(mean, deviation) for mean, deviation in ((5, 1), (30, 3), (60, 6), (90, 3), (99.5, 0.1))]


def test_the_interval_covers_the_truth():
    random = np.random.default_rng(3)
    for situation in simulation.SITUATIONS:
        assert 0.89 < simulation.coverage(situation, 150, random) <= 0.99, situation.label


def test_verdicts_keep_their_error_rate_and_gain_power_with_seeds():
    few, many = (simulation.cell_rates(KNOWN * 2, seeds=n, draws=40, random=np.random.default_rng(3)) for n in (3, 5))
    assert max(few.error, many.error) <= 0.15, "of 40 families"
    assert few.power < many.power
    assert many.power > 0.8
