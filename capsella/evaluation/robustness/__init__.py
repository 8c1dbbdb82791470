"""Accuracy on test images that are turned, moved, coloured and made noisy."""
