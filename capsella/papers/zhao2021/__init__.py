"""Zhao, Cheng 2021, "Capsule networks with non-iterative cluster routing"."""
