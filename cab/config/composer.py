"""The configurations of a sweep's cells: Hydra composes one for each place, and attentions change in it."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from hydra import compose
from omegaconf import DictConfig, OmegaConf, open_dict

from cab.config.compose import parse_overrides, resolve
from cab.config.sources import usual_options
from cab.registry.tables import tuned_options

GROUP = "attention"
SOME = "vanilla"
"""Whose composition stands for the others'."""


class Place(NamedTuple):
    """``config`` with some attention; ``resolved`` where no value beside the attention's options looks at them."""

    config: DictConfig
    resolved: dict[str, Any] | None


class ConfigComposer:
    """Composes cells. Those that differ in nothing but the name of their attention cost one composition together.

    What stands at ``attention`` is then the options of that name and nothing else: where a file, or an override such
    as ``attention.num_landmarks=8``, says more, each cell is composed for itself.
    """

    def __init__(self) -> None:
        self._places: dict[tuple[str, ...], Place | None] = {}

    def compose(self, overrides: Sequence[str]) -> dict[str, Any]:
        """Compose the configuration of a run, as :func:`cab.config.compose.resolve` returns it."""
        names = [override for override in overrides if override.startswith(f"{GROUP}=")]
        place = tuple(override for override in overrides if override not in names)
        has_options = any(override.startswith(f"{GROUP}.") for override in place)
        known = self._place(place) if len(names) == 1 and not has_options else None
        if known is None:
            return resolve(compose("run", overrides=list(overrides)))
        name = str(parse_overrides(names)[0].value())
        if known.resolved is None:
            config = copy.deepcopy(known.config)
            with open_dict(config):
                config[GROUP] = usual_options(GROUP, name)
            return resolve(config)
        cell = copy.deepcopy(known.resolved)
        where = cell["task"]["name"], cell["backbone"]["name"], str(cell["pattern"])
        return cell | {GROUP: {"name": name, **tuned_options(*where, name, preset=cell["preset"])}}

    def _place(self, place: tuple[str, ...]) -> Place | None:
        """Compose these overrides once; None if anything but its name decides on an attention's options."""
        if place not in self._places:
            config = compose("run", overrides=[*place, f"{GROUP}={SOME}"])
            is_usual = OmegaConf.to_container(config[GROUP]) == usual_options(GROUP, SOME)
            self._places[place] = Place(config, None if _looks_at_it(config) else resolve(config)) if is_usual else None
        return self._places[place]


def _looks_at_it(config: DictConfig) -> bool:
    """Whether a value of another group is made from what stands at ``attention``."""
    others = OmegaConf.masked_copy(config, [str(key) for key in config if key != GROUP])
    return re.search(rf"\$\{{.*\b{GROUP}\b", str(OmegaConf.to_container(others))) is not None
