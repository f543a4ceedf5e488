"""The published data sets: where each comes from, how to get it, and whether what lies here is whole.

What is known of a source is data, ``configs/data/<data set>.yaml``; other packages bring their own the same way.
"""
