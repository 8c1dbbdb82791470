"""What Heinsen 2019 prints."""

SMALLNORB = 0.9
"""Test error on smallNORB in per cent: the best of ten trainings by the test's toys, each at its last epoch."""
