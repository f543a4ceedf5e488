"""Put on the path of processes that a test stops; see sitecustomize.py."""
