"""The command of :mod:`tools.golden.record`."""

from tools.golden.record import main

main()
