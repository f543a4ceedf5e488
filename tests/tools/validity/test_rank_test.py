"""The stratified test of rank agreement: exact cases, its level, and its power."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest

from tools.validity.validity import rank_test


def test_one_cell_equals_the_exact_permutation_test() -> None:
    x, y = [1.0, 2.0, 3.0, 4.0, 5.0], [1.0, 3.0, 2.0, 5.0, 4.0]
    observed, p_value = rank_test({"NS": (pd.DataFrame(x), pd.DataFrame(y))}, draws=999)
    exact = [np.cov(each, y)[0, 1] for each in itertools.permutations(x)]
    assert observed == pytest.approx(np.cov(x, y)[0, 1])
    assert p_value == pytest.approx(np.mean(np.array(exact) >= observed - 1e-9), abs=0.03)


def test_missing_scores_are_left_out() -> None:
    one, other = pd.DataFrame({"a": [1.0, 2.0, np.nan], "b": [1.0, np.nan, np.nan]}), pd.DataFrame({"a": [5, 7, 1.0]})
    assert rank_test({"CS": (one, other.assign(b=[1.0, 2.0, 3.0]))}, draws=9)[0] == pytest.approx(0.5)


def test_cells_with_the_same_scores_are_no_further_evidence() -> None:
    """The attentions are permuted with all their cells."""
    x, y = np.random.default_rng(2).standard_normal((2, 6))

    def tested(cells: str) -> tuple[float, float]:
        one, other = (pd.DataFrame(dict.fromkeys(cells, each)) for each in (x, y))
        return rank_test({"NS": (one, other)}, draws=199)

    covariance, p_value = tested("a")
    assert tested("ab") == (2 * covariance, p_value)
