"""The synthetic suite: cells of generated data with preset mini (docs/reference/tasks/suite.md)."""
