"""Plugins that Hydra finds in this package; see :mod:`cab.config.groups`."""

from cab.config.groups import ConfigFolders, RegistrySource

__all__ = ["ConfigFolders", "RegistrySource"]
