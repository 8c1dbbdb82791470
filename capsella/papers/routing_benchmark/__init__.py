"""A benchmark of all registered routings in one network, with the same images and learning-rate search for each."""
