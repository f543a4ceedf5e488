"""Base classes that several attentions share; nothing here is registered."""
