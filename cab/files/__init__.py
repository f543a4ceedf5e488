"""Cache, configuration folders, and safe writing of files and text."""
