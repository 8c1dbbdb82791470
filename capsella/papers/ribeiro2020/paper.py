"""What Ribeiro, Leontidis, Kollias 2020 state, in the paper's code and its read-me."""

SMALLNORB = 1.3
"""Test error on smallNORB in per cent, of the network of three capsule layers."""
