"""Download and verify published data sets.

Each data set is described in ``configs/data/<name>.yaml`` (URL, size, checksum, license); other packages add theirs
through an entry point of ``cab.configs``.
"""
