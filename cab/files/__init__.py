"""Cache, write checks, full disks, and text that is safe to print."""
