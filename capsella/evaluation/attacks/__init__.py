"""Adversarial attacks, and how often networks are still right under them."""
