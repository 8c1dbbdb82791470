"""Ribeiro, Leontidis, Kollias 2020, "Capsule Routing via Variational Bayes"."""
