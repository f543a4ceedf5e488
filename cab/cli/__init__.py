"""The command line; every handler imports what it needs when it runs."""
