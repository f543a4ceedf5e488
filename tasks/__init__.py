"""Tasks, one package each: data, training loss, metrics and evaluation protocol."""
