"""Hinton, Sabour, Frosst 2018, "Matrix Capsules with EM Routing"."""
