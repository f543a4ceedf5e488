"""Command line; the modules of the commands import heavy packages only when they run."""
