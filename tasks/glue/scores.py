"""GLUE's metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from scipy import stats

METRICS: Mapping[str, tuple[str, ...]] = {
    "cola": ("matthews",),
    "sst2": ("accuracy",),
    "mrpc": ("f1", "accuracy"),
    "qqp": ("accuracy", "f1"),
    "mnli": ("accuracy",),
    "qnli": ("accuracy",),
    "rte": ("accuracy",),
    "stsb": ("pearson", "spearman"),
    "synthetic": ("accuracy",),
}
"""Per data set; the first metric is the one in Qin et al. 2022 (except for STS-B), and selects the checkpoint."""
UNITS = {"accuracy": "of examples", "f1": "of class 1", "matthews": "correlation"}
UNITS |= dict.fromkeys(("pearson", "spearman"), "correlation")


def accuracy(guesses: np.ndarray, truth: np.ndarray) -> float:
    """Return the fraction of correct predictions."""
    return float((guesses == truth).mean())


def f1(guesses: np.ndarray, truth: np.ndarray) -> float:
    """Return F1 of class 1; 0 if it is neither predicted nor true."""
    named = int((guesses == 1).sum() + (truth == 1).sum())
    return 2 * int(((guesses == 1) & (truth == 1)).sum()) / named if named else 0.0


def pearson(guesses: np.ndarray, truth: np.ndarray) -> float:
    """Return Pearson's correlation; 0 if either input is constant, as scikit-learn defines Matthews' correlation."""
    return _correlation(stats.pearsonr, guesses, truth)


def spearman(guesses: np.ndarray, truth: np.ndarray) -> float:
    """Return Spearman's correlation; 0 if either input is constant."""
    return _correlation(stats.spearmanr, guesses, truth)


def _correlation(measure: Callable[..., tuple[float, float]], guesses: np.ndarray, truth: np.ndarray) -> float:
    if len(truth) < 2 or np.ptp(guesses) == 0 or np.ptp(truth) == 0:
        return 0.0
    return float(measure(guesses, truth)[0])


FUNCTIONS: Mapping[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": accuracy,
    "f1": f1,
    "matthews": pearson,  # equal for two classes
    "pearson": pearson,
    "spearman": spearman,
}


def scores_of(dataset: str, guesses: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    """Return the metrics of a data set, by name."""
    return {name: FUNCTIONS[name](guesses, truth) for name in METRICS[dataset]}
