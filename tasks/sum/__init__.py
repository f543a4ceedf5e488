"""Sum: multi-document summarization, Multi-News with the protocol of ParaGen."""
