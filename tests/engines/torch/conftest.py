from tests.helpers.runs.fixtures import quick_pictures, registered, troubled, uncut  # noqa: F401
