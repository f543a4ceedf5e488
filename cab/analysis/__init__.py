"""What a network's attentions do: where their weight lies, and how large the gradients of their scores are."""
