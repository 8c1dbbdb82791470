"""Experiments that train many networks: searches for better hyper-parameters."""
