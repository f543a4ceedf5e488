"""The networks of preset `paper` have exactly the parameters behind Tables 16 to 19."""

import pytest

from cab import Pattern
from cab.registry.registries import ATTENTIONS
from cab.registry.tables import read_table
from cab.results.paper_values import count_parameters
from cab.results.published import rows

CELLS = {(r["pattern"], r["backbone"], r["attention"]): int(r["params"]) for r in rows("parameters_reproduced.csv")}
NETWORKS = list({cell[:2]: cell for cell in reversed(CELLS)}.values())
"""One cell per pattern and network; the others are slow tests."""


@pytest.mark.parametrize(
    "cell",
    [pytest.param(cell, marks=[] if cell in NETWORKS else pytest.mark.slow, id=" ".join(cell)) for cell in CELLS],
)
def test_counts(cell):
    assert count_parameters(*cell) == CELLS[cell]


EXACT = {("CS", "gpt2_wt103", "vanilla"): 156_000_256, ("NS", "roberta_wt103", "vanilla"): 124_696_665}
EXACT |= {("CS", "gpt2_wt103_glu", f"transnormer_t{kind}"): 155_988_156 for kind in (1, 2)}
EXACT |= {("NS", "roberta_wt103_glu", f"transnormer_t{kind}"): 124_672_473 for kind in (1, 2)}


@pytest.mark.parametrize("cell", EXACT)
def test_counts_of_transnormer_with_lrpe_and_the_widths_that_they_need(cell):
    """Its Tables 4 and 5; Table 13 prints the widths 2,048 for width 512 and 1,365 for 768, which is 162.3 M."""
    assert count_parameters(*cell) == EXACT[cell]
    published = {(r["pattern"], r["backbone"], r["attention"]): r for r in rows("parameters_transnormer.csv")}
    assert f"{EXACT[cell] / 1e6:.2f}" == f"{float(published[cell]['params_millions']):.2f}"


def test_table5_names_attentions_patterns_and_options_that_exist():
    for row in read_table("table5"):
        entry = ATTENTIONS.get(row["attention"])
        assert row["option"] in entry.options, row
        assert Pattern(row["pattern"]) in entry.patterns, row
