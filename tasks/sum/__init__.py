"""Sum: multi-document summarisation, Multi-News with the protocol of ParaGen."""
