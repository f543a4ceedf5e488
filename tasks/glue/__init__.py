"""GLUE: fine-tuning on sentences and pairs of sentences."""
