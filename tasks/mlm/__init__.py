"""MLM: masked language modeling."""
