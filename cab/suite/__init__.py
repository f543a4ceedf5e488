"""The suite: the cells of generated data at preset mini, which measure attention in minutes. See docs/reference/tasks/suite.md."""
