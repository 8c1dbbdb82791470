"""The backends: which one runs a routing, and the C++ kernels of csrc as operators of PyTorch.

The kernels take plain float32 arrays and the sizes of a capsule convolution. If they are not built, nothing is
registered, and no layer calls them.
"""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor

from capsella import _native
from capsella._native import kernels
from capsella.errors import ArgumentError, check_argument, warn_once
from capsella.routing.convolution import RoutingInputs, RoutingShape
from capsella.routing.functional import is_traced, is_transformed
from capsella.routing.recording import is_recording
from capsella.types import CapsuleLogits

# reference: plain loops, line for line with the paper. eager: PyTorch. native: C++ on the CPU, and triton: kernels for
# CUDA devices; neither writes the votes to memory. auto: native for float32 on a CPU where it is built, else eager.
Backend = Literal["auto", "reference", "eager", "native", "triton"]
DENSE = ("reference", "eager")
FUSED = ("native", "triton")
MOST_POSE_ELEMENTS = 256  # per pose, in the native kernels


def choose_backend(backend: str, available: Collection[str] = DENSE, *, auto: str = "eager") -> str:
    """Return the backend to run: `auto` if `backend` is "auto", otherwise `backend` itself.

    While `record()` is open, "eager" replaces "reference", whose loops keep no traces.

    Raises:
        ArgumentError: `backend` is not one of `available`.
    """
    if backend == "auto":
        return auto
    if backend not in available:
        raise ArgumentError("backend", f"be 'auto' or one of {sorted(available)} for this routing", backend)
    return "eager" if backend == "reference" and is_recording() else backend


def choose_layer_backend(routing: Any, inputs: RoutingInputs, no_native: str | None = None) -> Backend:
    """Return the backend that runs a layer; unlike `choose_backend`, this knows the fused ones, which store no votes.

    While `record()` is open, "eager" replaces all others, because only eager has couplings to record. If "auto" falls
    back to eager on a CPU, this warns once per reason. `no_native` is the reason why `routing` has no native kernel for
    this kind of layer; None if it has one.

    Raises:
        ValueError: the routing has no such backend, or it cannot run here.
    """
    if routing.backend == "auto" and no_native is None:
        warn_of_eager(routing.name, inputs.poses, native_obstacle(inputs))
    no_native = no_native or native_obstacle(inputs)
    auto = "native" if no_native is None else "eager"
    chosen = cast(Backend, choose_backend(routing.backend, (*DENSE, *routing.fused), auto=auto))
    if chosen not in FUSED:
        return chosen
    obstacle = no_native if chosen == "native" else triton_obstacle(inputs)
    if obstacle is not None:
        raise ValueError(f"backend: {chosen!r} cannot run here: {obstacle}")
    return "eager" if is_recording() else chosen


def warn_of_eager(routing: str, tensor: Tensor, obstacle: str | None) -> None:
    """Warn, once per reason, that a layer with `tensor` as input runs on a CPU without the native kernels.

    While a graph is traced or couplings are recorded, eager is intended, and there is no warning.
    """
    # Tracing is checked first, because torch.compile would trace the other checks.
    if is_traced() or is_recording() or tensor.device.type != "cpu" or obstacle is None:
        return
    remedy = "" if obstacle == _native.UNAVAILABLE else '; backend="eager" does the same without this warning'
    text = f'runs in PyTorch, several times slower: backend "native" cannot run here: {obstacle}{remedy}'
    warn_once(obstacle, f"{routing.replace('_', '-')} routing {text}")


def triton_obstacle(inputs: RoutingInputs) -> str | None:
    """Return the reason why the Triton kernels cannot take this layer; None if they can."""
    if find_spec("triton") is None:
        return "it needs the package triton: pip install 'capsella[triton]' (on Linux)"
    # Triton's interpreter runs kernels as NumPy code, for tests.
    if inputs.poses.device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return f"it runs on CUDA devices, and the poses are on {inputs.poses.device}"
    return _offset_obstacle(inputs)


def native_obstacle(inputs: RoutingInputs) -> str | None:
    """Return the reason why the native kernels cannot take this layer; None if they can."""
    if torch.jit.is_tracing():
        return "torch.jit.trace does not support its operators; torch.export does"
    offset = inputs.vote_offset
    tensors = {"poses": inputs.poses, "activations": inputs.activations, "weight": inputs.weight}
    for name, tensor in (tensors if offset is None else {**tensors, "vote offset": offset}).items():
        if (obstacle := tensor_obstacle(name, tensor)) is not None:
            return obstacle
    if (elements := max(inputs.poses.shape[-1], inputs.weight.shape[-1])) > MOST_POSE_ELEMENTS:
        return f"it takes poses of up to {MOST_POSE_ELEMENTS} elements, and these have {elements}"
    return _offset_obstacle(inputs)


def _offset_obstacle(inputs: RoutingInputs) -> str | None:
    if inputs.vote_offset is not None and inputs.vote_offset.requires_grad:
        return "it treats vote_offset as a constant, and this one requires gradients"
    return None


def tensor_obstacle(name: str, tensor: Tensor, dtypes: Sequence[torch.dtype] = (torch.float32,)) -> str | None:
    """Return the reason why native kernels cannot take a tensor: its device, or a type other than `dtypes`."""
    if _native.UNAVAILABLE is not None:
        return _native.UNAVAILABLE
    if is_transformed():
        return "it supports only backward passes, and torch.func or a forward-mode derivative is active"
    verb = "are" if name.endswith("s") else "is"
    if tensor.device.type != "cpu":
        return f"it runs on the CPU, and the {name} {verb} on {tensor.device}"
    if tensor.dtype not in dtypes:
        taken = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        return f"it takes {taken}, and the {name} {verb} {tensor.dtype}"
    return None


Call = dict[str, Any]  # the arguments of an operator by name


class Kernel:
    """The C++ kernels NAME_forward and NAME_backward as one operator with gradients, `capsella::NAME_capsule_conv`.

    The operator takes tensors, a `RoutingShape` as `sizes`, and each option as an argument of its own. It returns the
    parents' poses, their activations or log-odds, and the tensors that are kept for the backward pass.

    Subclasses declare what their kernels read and fill, by the names in csrc/kernels.h and csrc/module.cpp.
    """

    family: ClassVar[str]  # prefix of the C++ classes, e.g. of MixtureInputs and MixtureGradients
    tensors: ClassVar[Mapping[str, str]]  # schema types of the tensors, "Tensor?" for optional ones
    differentiable: ClassVar[Sequence[str]]  # the tensors that get gradients
    second: ClassVar[str]  # the kernels' name of the second result, "activations" or "log_odds"
    kept: ClassVar[Sequence[str]]  # names of the further results, which are kept for the backward pass

    def __init__(self, name: str, options_class: str, **options: str) -> None:
        """Register the operator; `options` maps each field of the C++ class `options_class` to its schema type."""
        self.name, self.options_class, self.options = name, options_class, list(options)
        types = {**self.tensors, "sizes": "SymInt[]", **options}
        self.arguments = list(types)
        if kernels is None:
            return
        schema = ", ".join(f"{kind} {argument}" for argument, kind in types.items())
        results = ", ".join(["Tensor"] * (2 + len(self.kept)))
        operator = f"{name}_capsule_conv"
        self.operator = define_operator(operator, f"({schema}) -> ({results})", self._forward, self._fake_forward)
        self.backward_operator = define_operator(
            f"{operator}_backward",
            f"(Tensor grad_poses, Tensor grad_{self.second}, Tensor[] kept, {schema}) -> Tensor[]",
            self._backward,
            self._fake_backward,
        )
        torch.library.register_autograd(f"capsella::{operator}", self._differentiate, setup_context=self._save)
        refuse_second_derivatives(f"{operator}_backward", f"{name} routing")

    def __call__(self, call: Call) -> tuple[Tensor, Tensor]:
        """Return the parents' poses, and their activations or log-odds."""
        poses, second, *_ = self.operator(*(call[argument] for argument in self.arguments))
        return poses, second

    def empty_results(self, call: Call) -> dict[str, Tensor]:
        """Return the tensors that the forward kernel fills: poses, the second result, and those kept for backward."""
        raise NotImplementedError

    def pack(self, kept: Call) -> Call:
        """Return the kept tensors as arguments of the kernels."""
        return kept

    def _call(self, values: Sequence[Any]) -> Call:
        return dict(zip(self.arguments, values, strict=True))

    def _forward(self, *values: Any) -> tuple[Tensor, ...]:
        call = self._call(values)
        kept = self.empty_results(call)
        results = {part: kept.pop(part) for part in ("poses", self.second)}
        self._run("forward", call, **self.pack(kept), **results)
        return *results.values(), *kept.values()

    def _fake_forward(self, *values: Any) -> tuple[Tensor, ...]:
        return tuple(self.empty_results(self._call(values)).values())

    def _backward(self, grad_poses: Tensor, grad_second: Tensor, given: list[Tensor], *values: Any) -> list[Tensor]:
        call = self._call(values)
        gradients = self._empty_gradients(call)
        kept = detached_arrays(**dict(zip(self.kept, map(_aligned, given), strict=True)))
        slopes = detached_arrays(**{"grad_poses": grad_poses, f"grad_{self.second}": grad_second})
        packed = getattr(kernels, f"{self.family}Gradients")(**gradients)
        self._run("backward", call, **self.pack(kept), **slopes, gradients=packed)
        return list(gradients.values())

    def _fake_backward(self, *values: Any) -> list[Tensor]:
        return list(self._empty_gradients(self._call(values[3:])).values())

    def _asking(self, call: Call) -> list[str]:
        return [part for part in self.tensors if part in self.differentiable and call[part] is not None]

    def _empty_gradients(self, call: Call) -> dict[str, Tensor]:
        return {part: call[part].new_empty(call[part].shape) for part in self._asking(call)}

    def _run(self, direction: str, call: Call, **others: Any) -> None:
        tensors = {part: call[part] for part in self.tensors}
        options = {part: x for part, x in call.items() if part not in tensors and part != "sizes"}
        check_float32(tensors)
        getattr(kernels, f"{self.name}_{direction}")(
            kernel_shape(call["sizes"]),
            getattr(kernels, self.options_class)(**options),
            getattr(kernels, f"{self.family}Inputs")(**detached_arrays(**tensors)),
            **others,
            threads=torch.get_num_threads(),
        )

    def _save(self, ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs[: len(self.tensors)], *output[2:])
        ctx.numbers = inputs[len(self.tensors) :]

    def _differentiate(self, ctx: Any, grad_poses: Tensor, grad_second: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # read once: gradient checkpointing does not unpack them a second time
        values = (*saved[: len(self.tensors)], *ctx.numbers)
        gradients = self.backward_operator(grad_poses, grad_second, list(saved[len(self.tensors) :]), *values)
        named = dict(zip(self._asking(self._call(values)), gradients, strict=True))
        return tuple(named.get(part) for part in self.arguments)


class MixtureKernel(Kernel):
    """The kernels of a routing that fits a mixture of Gaussians: EM, variational Bayes and Heinsen's."""

    family = "Mixture"
    tensors: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("poses", "activations", "weight", "parameters"), "Tensor"),
        **dict.fromkeys(("vote_offset", "bias", "start"), "Tensor?"),
    }
    differentiable = ("poses", "activations", "weight", "parameters", "bias")
    second = "log_odds"
    kept = ("means", "variances", "log_odds_kept", "data", "log_total", "log_normalisers")

    def route(
        self,
        inputs: RoutingInputs,
        parameters: Tensor,
        *,
        bias: Tensor | None = None,
        start: Tensor | None = None,
        **options: Any,
    ) -> CapsuleLogits:
        """Route every window of the grid, in float32.

        Args:
            inputs: the inputs of the layer.
            parameters: [k c_out], the learned parameters besides the weight, one per row; the routing's formulas in
                csrc name the rows.
            bias: [i c_out d], added to the votes.
            start: couplings of the first iteration [i c_out]; None for uniform ones.
            options: the options of the kernel.
        """
        dtype = inputs.poses.dtype
        call = {
            "poses": inputs.poses,
            "activations": inputs.activations,
            "weight": inputs.weight,
            "parameters": parameters.to(dtype),
            "vote_offset": inputs.vote_offset,
            "bias": None if bias is None else bias.to(dtype),
            "start": start,
            "sizes": list(inputs.shape),
        }
        return CapsuleLogits(*self({**call, **options}))

    def empty_results(self, call: Call) -> dict[str, Tensor]:
        """See `Kernel`."""
        shape, new = RoutingShape._make(call["sizes"]), call["poses"].new_empty
        iterations = call["iterations"] if "iterations" in call else len(call["inverse_temperatures"])
        padded = (shape.c_out + 15) // 16 * 16
        # No kernel writes the padding, and none reads it.
        keep = new if padded == shape.c_out else call["poses"].new_zeros
        normalised = call.get("compete_everywhere", False) and shape.rows * shape.columns > 1
        return {
            "poses": new(*shape.grid, shape.d),
            "log_odds": new(shape.grid),
            "means": keep(shape.n, iterations, shape.d, padded),
            "variances": keep(shape.n, iterations, shape.d, padded),
            "log_odds_kept": keep(shape.n, iterations, padded),
            "data": keep(shape.n, iterations, padded),
            "log_total": keep(shape.n, iterations, padded),
            "log_normalisers": new(iterations - 1 if normalised else 0, *call["poses"].shape[:4]),
        }

    def pack(self, kept: Call) -> Call:
        """See `Kernel`."""
        named = {"log_odds" if name == "log_odds_kept" else name: array for name, array in kept.items()}
        return {"kept": kernels.MixtureKept(**named)}


def define_operator(name: str, schema: str, run: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """Define the operator `capsella::NAME` on the CPU; `fake` returns results of the right shapes without values.

    The first call of `torch.library.custom_op` would import PyTorch's compiler, which takes more than a second.
    """
    torch.library.define(f"capsella::{name}", schema, tags=torch.Tag.pt2_compliant_tag)
    torch.library.impl(f"capsella::{name}", "cpu", run)
    torch.library.register_fake(f"capsella::{name}", fake)
    return getattr(torch.ops.capsella, name).default


def refuse_second_derivatives(operator: str, owner: str) -> None:
    """Make differentiating the operator of a backward pass an error; PyTorch would take its derivatives for zero."""

    def refuse(ctx: Any, *_: Any) -> None:
        raise NotImplementedError(f"the native kernels of {owner} have no second derivatives; backend='eager' has them")

    torch.library.register_autograd(f"capsella::{operator}", refuse)


def check_float32(tensors: Mapping[str, Tensor | None]) -> None:
    """Check that tensors are float32; kernels would convert others, and fill a copy of a gradient that is then lost.

    Raises:
        ArgumentError: a tensor has another type.
    """
    for name, tensor in tensors.items():
        if tensor is not None:
            rule = "be float32 for the native kernels (backend='eager' takes others)"
            check_argument(tensor.dtype == torch.float32, rule, **{name: tensor.dtype})


def kernel_shape(sizes: Sequence[int]) -> Any:
    """Return the `Conv` of csrc/kernels.h for the numbers of a `RoutingShape`.

    Raises:
        ArgumentError: sizes that no layer can have, with which a kernel would read beyond its arrays.
    """
    shape = RoutingShape._make(sizes)
    last_rows = (shape.rows - 1) * shape.stride_height + shape.kernel_height
    last_columns = (shape.columns - 1) * shape.stride_width + shape.kernel_width
    is_inside = 0 < last_rows <= shape.height and 0 < last_columns <= shape.width
    fits = shape.r * max(shape.q, shape.e) <= MOST_POSE_ELEMENTS and min(shape.batch + 1, *shape[1:-1]) > 0
    rule = f"have windows inside the grid, and poses of 1 to {MOST_POSE_ELEMENTS} elements"
    check_argument(is_inside and fits, rule, sizes=shape)
    return kernels.Conv(**{**shape._asdict(), "tied": bool(shape.tied)})


def detached_arrays(**tensors: Tensor | None) -> dict[str, Any]:
    """Return the tensors detached and contiguous, because kernels take no arrays that require gradients."""
    return {name: None if tensor is None else tensor.detach().contiguous() for name, tensor in tensors.items()}


def _aligned(tensor: Tensor) -> Tensor:
    """Return the tensor aligned to cache lines; hooks on saved tensors may return it unaligned."""
    return tensor if tensor.data_ptr() % 64 == 0 else tensor.clone()
