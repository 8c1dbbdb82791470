"""Whether an image is like those that a network was trained on."""
