"""Results on disk: the record of a run, its schema, and which code was verified."""
