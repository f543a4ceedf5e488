"""Download missing data before a run (``data.download=true``)."""

from __future__ import annotations

from cab.data.check import State, take_inventory
from cab.data.download import download
from cab.data.sources import data_sets, fetch_hint
from cab.errors import UserError
from cab.runner.cell import Cell


def bring_data(cell: Cell) -> None:
    """Download the cell's data set if it is incomplete and ``data.download`` is set.

    Raises:
        UserError: no data root is set, the data set requires a manual download, or the download fails.
    """
    data_set = data_sets().get(cell.config.dataset)
    if not cell.config.data["download"] or data_set is None:
        return
    if cell.config.data_root is None:
        raise UserError("data.download=true requires a folder for the data: set data_root=FOLDER or CAB_DATA")
    if take_inventory(data_set, cell.config.data_root).state is State.READY:
        return
    inventory, manual_steps = download(data_set, cell.config.data_root)
    if manual_steps and inventory.state is not State.READY:
        steps = "; ".join(manual_steps)
        again = fetch_hint(data_set.name, cell.config.data_root)
        raise UserError(
            f"{data_set.name} must be downloaded manually: {steps}; then: `{again} --source DOWNLOADED_FILE_OR_FOLDER`"
        )
