from tests.helpers.runs.fixtures import (
    quick_pictures as quick_pictures,
    recorded as recorded,
    registered as registered,
    troubled as troubled,
    uncut as uncut,
)
