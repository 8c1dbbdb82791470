"""Sabour, Frosst, Hinton 2017, "Dynamic Routing Between Capsules"."""
