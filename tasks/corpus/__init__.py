"""Books as token streams: what the tasks LM and MLM read. Registers nothing."""
