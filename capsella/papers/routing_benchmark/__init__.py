"""A benchmark of every registered routing in one network, on the same images and with the same search of the rate."""
