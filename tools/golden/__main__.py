"""Record cases: ``python -m tools.golden SOURCE FOLDER [NAME ...]``.

SOURCE is a module of this package, FOLDER contains the public code that its docstring names, and each NAME chooses a
function ``make_NAME`` or ``start_NAME`` (default: all). Functions ``start_*`` run in float32.
"""

import contextlib
import importlib
import sys

from tools.golden.record import in_double


def main() -> None:
    """Call ``patch`` and then the functions of the module, or those that are named."""
    source, folder, *names = sys.argv[1:]
    sys.path.insert(0, folder)
    functions = vars(importlib.import_module(f"tools.golden.{source}"))
    with in_double():
        functions.get("patch", lambda: None)()
    for name, make in list(functions.items()):
        kind, _, what = name.partition("_")
        if kind in ("make", "start") and (not names or what in names):
            with in_double() if kind == "make" else contextlib.nullcontext():
                make()


if __name__ == "__main__":
    main()
