"""What a training frees stays with the process."""

import os
import subprocess
import sys

import pytest

PAGES = 2**26 // 4096  # of an array of 64 MiB
CHILD = """
import resource
import torch
from capsella.training.memory import keep_freed_memory

def faults(times):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        torch.ones(2**24)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults(2)
before = faults(3)
keep_freed_memory()
faults(2)
print(before, faults(3))
"""

has_glibc = hasattr(os, "confstr") and "CS_GNU_LIBC_VERSION" in os.confstr_names
needs_glibc = pytest.mark.skipif(not has_glibc, reason="the allocator is glibc's")


def pages_cleared(**settings: str) -> tuple[int, int]:
    """By three arrays before and after the call, in a process of its own with these variables."""
    plain = {key: value for key, value in os.environ.items() if not key.startswith(("MALLOC_", "GLIBC_", "THP_"))}
    output = subprocess.run([sys.executable, "-c", CHILD], env=plain | settings, check=True, stdout=subprocess.PIPE)
    before, after = map(int, output.stdout.split())
    return before, after


@needs_glibc
def test_the_same_memory_is_taken_again() -> None:
    before, after = pages_cleared()
    assert before > 2.7 * PAGES
    assert after < PAGES


@needs_glibc
def test_settings_of_the_environment_stand() -> None:
    before, after = pages_cleared(MALLOC_ARENA_MAX="2")
    assert min(before, after) > 2.7 * PAGES
