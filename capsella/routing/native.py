"""What all native kernels take: plain float32 arrays and the numbers of a capsule convolution.

An operator of PyTorch takes tensors and numbers one by one. Each kernel's `native.py` names them once, in a `Call`:
tensors, then `sizes` (a `ConvSizes`), then the options.
"""

from typing import Any

from torch import Tensor

from capsella._native import kernels
from capsella.routing.convolution import ConvSizes


def kernel_arguments(call: Any, options: Any, inputs: Any) -> tuple[Any, Any, Any]:
    """A `Call` as the kernels take it: its `Conv`, its options and its inputs, of the classes of csrc/module.cpp."""
    values = call._asdict()
    sizes = ConvSizes._make(values.pop("sizes"))._asdict()
    tensors = {name: value for name, value in values.items() if value is None or isinstance(value, Tensor)}
    numbers = {name: value for name, value in values.items() if name not in tensors}
    return kernels.Conv(**{**sizes, "tied": bool(sizes["tied"])}), options(**numbers), inputs(**arrays(**tensors))


def arrays(**tensors: Tensor | None) -> dict[str, Any]:
    """Contiguous, and outside of autograd, which will not hand over an array of a tensor it follows."""
    return {name: None if tensor is None else tensor.detach().contiguous() for name, tensor in tensors.items()}


def gradients_of(call: type[Any], **gradients: Tensor | None) -> tuple[Tensor | None, ...]:
    """What autograd wants of an operator's backward pass: for each field of its `Call` the gradient, or None."""
    return tuple(gradients.get(name) for name in call._fields)
