"""Scoring: the compositional index and the analyses in the paper that are based on it. Does not import torch."""

from cab.scoring.correlation import (
    benchmark_correlation,
    pattern_correlation,
    probe_agreement,
    rank_agreement,
    read_probes,
    task_correlation,
)
from cab.scoring.costs import load_costs
from cab.scoring.efficiency_length import efficiency_length
from cab.scoring.index import Scores, benefit_of_attention, order_table, score, score_table
from cab.scoring.normalization import NORMALIZATIONS
from cab.scoring.selection import select

__all__ = [
    "NORMALIZATIONS",
    "Scores",
    "benchmark_correlation",
    "benefit_of_attention",
    "efficiency_length",
    "load_costs",
    "order_table",
    "pattern_correlation",
    "probe_agreement",
    "rank_agreement",
    "read_probes",
    "score",
    "score_table",
    "select",
    "task_correlation",
]
