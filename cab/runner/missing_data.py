"""``data.download=true``: what a cell reads is brought before it is read."""

from __future__ import annotations

from cab.data.check import State, take_stock
from cab.data.get import get
from cab.data.sources import data_sets, how_to_get
from cab.errors import UserError
from cab.runner.cell import Cell


def bring_data(cell: Cell) -> None:
    """Get the cell's data set where it may be downloaded and nothing of it is here, or not all.

    Raises:
        ValueError: no folder is named to put it into, it can be had by hand alone, or see :func:`cab.data.get.get`.
    """
    data_set = data_sets().get(cell.config.dataset)
    if not cell.config.data["download"] or data_set is None:
        return
    if cell.config.data_root is None:
        raise UserError("data.download=true needs data_root=FOLDER, or CAB_DATA, to put the data into")
    if take_stock(data_set, cell.config.data_root).state is State.READY:
        return
    got = get(data_set, cell.config.data_root)
    if got.by_hand and got.stock.state is not State.READY:
        steps = "; ".join(got.by_hand)
        raise UserError(
            f"{data_set.name} cannot be downloaded: {steps}; {how_to_get(data_set.name, cell.config.data_root)}"
        )
