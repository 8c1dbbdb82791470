"""What Mazzia, Salvetti, Chiaberge 2021 print."""

ERRORS = {"MNIST": 0.26, "smallNORB": 2.5}
"""Test errors of one network, in per cent."""
