"""Memory that a training frees stays with the process: the next step takes it again."""

import ctypes
import os
import sys

# Of glibc's <malloc.h>.
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
LARGEST_KEPT = 2**30
"""Bytes: what is larger goes back to the system at once."""


def keep_freed_memory() -> None:
    """Let glibc's allocator keep what is freed, for the rest of the process.

    By default it asks the system for each array of more than 32 MiB, and gives it back when it is freed. A step of a
    training frees and allocates the same feature maps again and again, and the system clears every page anew. That
    takes a quarter of a step of CapsNet (LOG.md, L101). The process holds its largest memory until it ends.

    It does nothing where there is another allocator than glibc's, or where its settings were made in the environment.
    """
    if sys.platform != "linux" or any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return
    allocator = ctypes.CDLL(None)
    if hasattr(allocator, "mallopt"):  # musl has none
        allocator.mallopt(MMAP_THRESHOLD, LARGEST_KEPT)
        allocator.mallopt(TRIM_THRESHOLD, -1)  # never
