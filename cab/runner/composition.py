"""The configurations of a sweep's cells: Hydra composes one for each place, and attentions change in it."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from hydra import compose
from omegaconf import DictConfig, OmegaConf, open_dict

from cab.config_sources import usual_options

GROUP = "attention"
SOME = "vanilla"
"""Whose composition stands for the others'."""


class Composer:
    """Composes cells. Those that differ in nothing but the name of their attention cost one composition together.

    What stands at ``attention`` is then the options of that name and nothing else: where a file, or an override such
    as ``attention.num_landmarks=8``, says more, each cell is composed for itself.
    """

    def __init__(self) -> None:
        self._places: dict[tuple[str, ...], DictConfig | None] = {}

    def compose(self, overrides: Sequence[str]) -> DictConfig:
        """The configuration of a cell, not resolved."""
        names = [override for override in overrides if override.startswith(f"{GROUP}=")]
        place = tuple(override for override in overrides if override not in names)
        has_options = any(override.startswith(f"{GROUP}.") for override in place)
        known = self._place(place) if len(names) == 1 and not has_options else None
        if known is None:
            return compose("run", overrides=list(overrides))
        config = copy.deepcopy(known)
        with open_dict(config):
            config[GROUP] = usual_options(GROUP, names[0].removeprefix(f"{GROUP}="))
        return config

    def _place(self, place: tuple[str, ...]) -> DictConfig | None:
        """The configuration with some attention; None where something beside its name decides on its options."""
        if place not in self._places:
            config = compose("run", overrides=[*place, f"{GROUP}={SOME}"])
            is_usual = OmegaConf.to_container(config[GROUP]) == usual_options(GROUP, SOME)
            self._places[place] = config if is_usual else None
        return self._places[place]
