"""Run the command line: ``python -m cab``, as torchrun starts it."""

from runpy import run_module

run_module("cab.cli.main", run_name="__main__")
