"""Books as token streams, for the tasks LM and MLM. Registers nothing."""
