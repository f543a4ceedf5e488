"""Efficiency benchmark: time and memory of attentions by sequence length, under the default or the paper's protocol."""

from __future__ import annotations

from cab.efficiency.benchmark import Plan, measure
from cab.efficiency.cost import COLUMNS, Cost, write_costs
from cab.efficiency.setting import Setting, appendix_g

__all__ = ["COLUMNS", "Cost", "Plan", "Setting", "appendix_g", "measure", "write_costs"]
