"""What Heinsen 2019 prints."""

SMALLNORB = 0.9
"""Test error on smallNORB in per cent: the best of ten trainings, each kept where it was best on the test's toys."""
