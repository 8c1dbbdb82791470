"""Speed of the routing kernels beside plain PyTorch."""
