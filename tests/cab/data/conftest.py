from __future__ import annotations

from tests.cab.data.hosts import host as host
