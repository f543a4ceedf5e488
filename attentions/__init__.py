"""The attentions, one module each: the paper's equation, a readable reference form, and the fast form."""
