"""MLM: masked language modelling."""
