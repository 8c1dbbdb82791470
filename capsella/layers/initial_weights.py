"""First weights of ordinary layers."""

from torch import nn


def start_for_relus(network: nn.Module) -> None:
    """Draw the weights of all convolutions and dense layers as He et al. 2015 do for ReLUs, and zero their biases.

    PyTorch's default shrinks the signal by √6 a layer. Capsule layers keep their own first weights. Weights on the meta
    device, of a model made for its shapes alone, are left: drawing them would make PyTorch import its compiler, which
    takes seconds.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear) and not module.weight.is_meta:
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def start_truncated(layer: nn.Conv2d, sd: float) -> None:
    """Weights from a normal distribution cut at twice `sd`, biases 0.1: the authors' code of Sabour et al. 2017."""
    nn.init.trunc_normal_(layer.weight, std=sd, a=-2 * sd, b=2 * sd)
    if layer.bias is not None:
        nn.init.constant_(layer.bias, 0.1)
