"""The suite: cells of generated data at preset mini (docs/reference/tasks/suite.md)."""
