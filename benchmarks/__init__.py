"""How fast the routing kernels are, beside plain PyTorch, `torch.compile`, and the arithmetic that they need."""
