"""Files and text on disk: the cache, checked folders, full disks, and text that is safe to print."""
