from __future__ import annotations

from tests.helpers.data.hosts import host as host
