"""Speed of the routing kernels beside plain PyTorch, `torch.compile`, and the arithmetic that they need."""
