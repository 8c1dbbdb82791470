"""Whether a network tells images from elsewhere from those of its own kind."""
