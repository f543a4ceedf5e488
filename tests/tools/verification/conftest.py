from __future__ import annotations

from tests.attentions.conftest import poisoned as poisoned
