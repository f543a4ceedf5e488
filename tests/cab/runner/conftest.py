from tests.helpers.runs.fixtures import quick_pictures, recorded, registered, troubled, uncut  # noqa: F401
