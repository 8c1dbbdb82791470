"""First weights of ordinary layers."""

from torch import nn


def start_for_relus(network: nn.Module) -> None:
    """Draw the weights of all convolutions and dense layers as He et al. 2015 do for ReLUs, and zero their biases.

    PyTorch's default shrinks the signal by √6 a layer. Capsule layers keep their own first weights.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
