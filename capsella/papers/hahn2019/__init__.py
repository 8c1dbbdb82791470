"""Hahn, Pyeon, Kim 2019, "Self-Routing Capsule Networks"."""
