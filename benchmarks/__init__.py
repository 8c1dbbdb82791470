"""How fast the routing kernels are: against plain PyTorch, against `torch.compile`, and against arithmetic.

Beside that, whether trainings with them are stable and come to the same (`stability`, `retrain`), and what limits
predictions of millions of files (`names`, `workers`).
"""
