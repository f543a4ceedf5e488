"""Find attentions, backbones, tasks and engines by name, and build them."""
