"""Load the weights of finished runs, and other states of ``torch.save``."""

from __future__ import annotations

import warnings
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cab.errors import UserError, first_line, is_out_of_memory

if TYPE_CHECKING:  # commands without a model do not import torch
    import torch
    from torch import Tensor, nn


def load_file(path: Path, device: torch.device | str = "cpu") -> Any:
    """Load the tensors and plain values in a file of ``torch.save``; UserError for anything else, executing nothing."""
    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the unpickler, about files that torch.save did not write
            if zipfile.is_zipfile(path):
                with zipfile.ZipFile(path) as archive:
                    if damaged := archive.testzip():  # torch does not compare the checksums
                        raise zipfile.BadZipFile(f"wrong checksum of {damaged}")
            return torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; run the cell again with force=true") from None
    except Exception as error:  # torch raises many types, and its messages suggest to disable the protection
        if is_out_of_memory(error):
            raise
        raise UserError(
            f"{path} cannot be loaded ({type(error).__name__}): it is damaged or does not contain weights; "
            "run the cell again with force=true"
        ) from None


def load_weights(path: Path, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """Load a state dict; UserError as for :func:`load_file`, or if the file does not contain tensors by name."""
    import torch

    weights = load_file(path, device)
    if not isinstance(weights, dict) or not all(isinstance(value, torch.Tensor) for value in weights.values()):
        raise UserError(f"{path} does not contain weights by name; run the cell again with force=true")
    return weights


def load_network(network: nn.Module, path: Path) -> None:
    """Load the weights of a file into a network on the CPU; UserError if they do not match it."""
    try:
        network.load_state_dict(load_weights(path))
    except (RuntimeError, AttributeError) as error:
        detail = next((line.strip() for line in str(error).splitlines()[1:] if line.strip()), first_line(error))
        raise UserError(
            f"the weights in {path} do not match the network ({detail}); run the cell again with force=true"
        ) from None
