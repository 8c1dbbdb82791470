"""Native kernels as operators of PyTorch: plain float32 arrays and the numbers of a capsule convolution.

An operator takes tensors and numbers one by one. Each kernel's `native.py` names them once, in a `Call`: tensors, then
`sizes` (a `ConvSizes`), then the options.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from capsella._native import kernels
from capsella.errors import ArgumentError
from capsella.routing.backends import MOST_POSE_ELEMENTS
from capsella.routing.convolution import ConvSizes


def register_kernel(
    name: str,
    options: Any,
    inputs: Any,
    gradients: Any,
    call: type[Any],
    schema: str,
    empty_result: Callable[[Any], Mapping[str, Tensor]],
    kept: Sequence[str],
    asking: Sequence[str],
    second: str = "activations",
    keep: Callable[[dict[str, Any]], dict[str, Any]] = dict,
) -> Any:
    """The kernels NAME_forward and NAME_backward as one operator with gradients, `capsella::NAME_capsule_conv`.

    It returns the parents' poses and a second tensor, their activations or log-odds, and what the backward pass starts
    from.

    Args:
        name: of the kernels, as in "em".
        options, inputs, gradients: their classes of csrc/module.cpp.
        call, schema: the operator's arguments.
        empty_result: for a `call` the tensors to fill: poses, the second one, and by name what is `kept`.
        asking: names of the tensors of a call that have gradients, where they are not None.
        second: the kernels' name of the second tensor.
        keep: what is kept, as the kernels' arguments.
    """
    tensors = call._fields.index("sizes")

    def empty_gradients(*values: Any) -> dict[str, Tensor]:
        given = {part: x for part, x in call(*values)._asdict().items() if part in asking and x is not None}
        return {part: x.new_empty(x.shape) for part, x in given.items()}

    def forward(*values: Any) -> tuple[Tensor, ...]:
        filled = dict(empty_result(call(*values)))
        results = {part: filled.pop(part) for part in ("poses", second)}
        run = getattr(kernels, f"{name}_forward")
        threads = torch.get_num_threads()
        run(*_arguments(call(*values), options, inputs), **keep(filled), **results, threads=threads)
        return *results.values(), *filled.values()

    def backward(grad_poses: Tensor, grad_second: Tensor, given: list[Tensor], *values: Any) -> list[Tensor]:
        filled = empty_gradients(*values)
        getattr(kernels, f"{name}_backward")(
            *_arguments(call(*values), options, inputs),
            **keep(arrays(**dict(zip(kept, map(_aligned, given), strict=True)))),
            **arrays(**{"grad_poses": grad_poses, f"grad_{second}": grad_second}),
            gradients=gradients(**filled),
            threads=torch.get_num_threads(),
        )
        return list(filled.values())

    results = ", ".join(["Tensor"] * (2 + len(kept)))
    operator = define_operator(
        f"{name}_capsule_conv",
        f"({schema}) -> ({results})",
        forward,
        lambda *values: tuple(empty_result(call(*values)).values()),
    )
    backward_operator = define_operator(
        f"{name}_capsule_conv_backward",
        f"(Tensor grad_poses, Tensor grad_{second}, Tensor[] kept, {schema}) -> Tensor[]",
        backward,
        lambda *values: list(empty_gradients(*values[3:]).values()),
    )

    def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs[:tensors], *output[2:])
        ctx.numbers = inputs[tensors:]

    def differentiate(ctx: Any, grad_poses: Tensor, grad_second: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # once: gradient checkpointing unpacks them no second time
        given, values = list(saved[tensors:]), (*saved[:tensors], *ctx.numbers)
        found = backward_operator(grad_poses, grad_second, given, *values)
        asked = [part for part, x in zip(call._fields, values, strict=True) if part in asking and x is not None]
        named = dict(zip(asked, found, strict=True))
        return tuple(None if x is None else named.get(part) for part, x in zip(call._fields, values, strict=True))

    torch.library.register_autograd(f"capsella::{name}_capsule_conv", differentiate, setup_context=save)
    refuse_second_derivatives(f"{name}_capsule_conv_backward", f"{name} routing")
    return operator


def define_operator(name: str, schema: str, run: Callable[..., Any], empty: Callable[..., Any]) -> Any:
    """The operator `capsella::NAME` on the CPU; `empty` makes its results for shapes alone.

    Not by `torch.library.custom_op`, whose first call imports PyTorch's compiler, for more than a second.
    """
    one_line = " ".join(schema.split())
    torch.library.define(f"capsella::{name}", one_line, tags=torch.Tag.pt2_compliant_tag)
    torch.library.impl(f"capsella::{name}", "cpu", run)
    torch.library.register_fake(f"capsella::{name}", empty)
    return getattr(torch.ops.capsella, name).default


def refuse_second_derivatives(operator: str, of: str) -> None:
    """Let the operator of a backward pass raise an error, where PyTorch would take its derivatives for zero."""

    def refuse(ctx: Any, *_: Any) -> None:
        raise NotImplementedError(f"the native kernels of {of} have no second derivatives; backend='eager' has them")

    torch.library.register_autograd(f"capsella::{operator}", refuse)


def _arguments(call: Any, options: Any, inputs: Any) -> tuple[Any, Any, Any]:
    """A `Call` as the kernels take it: its `Conv`, its options and its inputs, of the classes of csrc/module.cpp."""
    values = call._asdict()
    conv = conv_of_sizes(values.pop("sizes"))
    tensors = {name: value for name, value in values.items() if value is None or isinstance(value, Tensor)}
    numbers = {name: value for name, value in values.items() if name not in tensors}
    check_float32(tensors)
    return conv, options(**numbers), inputs(**arrays(**tensors))


def check_float32(tensors: Mapping[str, Tensor | None]) -> None:
    """Else a kernel would read a copy, and fill a copy of a gradient, of which nobody hears.

    Raises:
        ValueError: another type.
    """
    for name, tensor in tensors.items():
        if tensor is not None and tensor.dtype != torch.float32:
            raise ValueError(
                f"{name}: must be float32 for the native kernels, got {tensor.dtype}; backend='eager' takes others"
            )


def conv_of_sizes(sizes: Sequence[int]) -> Any:
    """`Conv` of csrc/kernels.h, from a `ConvSizes` as an operator takes it.

    Raises:
        ValueError: sizes that no layer has, with which a kernel would read beyond its arrays.
    """
    conv = ConvSizes._make(sizes)
    last_rows = (conv.rows - 1) * conv.stride_height + conv.kernel_height
    last_columns = (conv.columns - 1) * conv.stride_width + conv.kernel_width
    is_inside = 0 < last_rows <= conv.height and 0 < last_columns <= conv.width
    fits = conv.r * max(conv.q, conv.e) <= MOST_POSE_ELEMENTS and min(conv.batch + 1, *conv[1:-1]) > 0
    if not (is_inside and fits):
        rule = f"windows inside the grid, and poses of 1 to {MOST_POSE_ELEMENTS} elements"
        raise ArgumentError("sizes", f"be of {rule}", conv)
    return kernels.Conv(**{**conv._asdict(), "tied": bool(conv.tied)})


def arrays(**tensors: Tensor | None) -> dict[str, Any]:
    """Contiguous, and outside of autograd, which will not hand over an array of a tensor it follows."""
    return {name: None if tensor is None else tensor.detach().contiguous() for name, tensor in tensors.items()}


def _aligned(tensor: Tensor) -> Tensor:
    """At the bounds of cache lines, as PyTorch allots memory, and hooks that bring saved tensors back may not."""
    return tensor if tensor.data_ptr() % 64 == 0 else tensor.clone()
