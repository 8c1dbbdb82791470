"""How fast the routing kernels are: against plain PyTorch, against `torch.compile`, and against arithmetic."""
