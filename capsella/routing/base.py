"""A routing method as a capsule layer sees it: options, the parameters it learns, and two entry points."""

import dataclasses
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor

from capsella.errors import ArgumentError, check_argument, check_types, near_names, unknown_name
from capsella.routing.backends import Backend, choose_layer_backend
from capsella.routing.convolution import RoutingInputs, RoutingShape, capsule_votes
from capsella.routing.functional import check_shape, checkpointed_in_chunks, is_traced
from capsella.routing.recording import record_routed, trace_count
from capsella.routing.votes import DenseVotes, FusedVotes
from capsella.types import CapsuleLogits, Capsules

# What the parents' activations are. lengths: lengths of squashed poses. log-odds: the logistic function of log-odds, by
# a `LogisticRouting`. shares: each parent's share of its children, decided by the children's poses and not by votes;
# shares sum to 1 over the parents. none: all activations are 1.
ActivationKind = Literal["lengths", "log-odds", "shares", "none"]


class Routed(NamedTuple):
    """The result of routing one set of votes.

    Attributes:
        poses: [b j d], the parents' poses.
        activations: [b j], in [0, 1].
        couplings: [b i j] of the last iteration; how much of child i went to parent j.
    """

    poses: Float[Tensor, "b j d"]
    activations: Float[Tensor, "b j"]
    couplings: Float[Tensor, "b i j"]


class RoutedLogits(NamedTuple):
    """A `Routed` before the logistic function: log-odds ln a/(1 − a) [b j] in place of the activations a."""

    poses: Float[Tensor, "b j d"]
    log_odds: Float[Tensor, "b j"]
    couplings: Float[Tensor, "b i j"]

    def routed(self) -> Routed:
        """Return the result with activations in place of log-odds."""
        return Routed(self.poses, self.log_odds.sigmoid(), self.couplings)


@dataclasses.dataclass(frozen=True)
class Routing(ABC):
    """Options of a routing method. Subclasses are final, frozen, and registered under `name`."""

    name: ClassVar[str]
    compares_poses: ClassVar[bool] = False
    """True if votes are weighed by their distance from the parent's pose, not by their direction. Layers then
    initialise square weights near the identity."""
    fused: ClassVar[tuple[str, ...]] = ()
    """Backends that store no votes: "native" or "triton". A routing that has any needs an option `backend`."""
    activation_kind: ClassVar[ActivationKind] = "lengths"
    """The kind of the parents' activations, by which networks choose the surrounding layers."""

    @property
    def has_activations(self) -> bool:
        """True if parents have activations; without them a network must read its classes off their poses."""
        return self.activation_kind != "none"

    def parameter_shapes(self, types: int, pose: int, children: int, child_pose: int) -> dict[str, tuple[int, ...]]:
        """Return names and shapes of the parameters that a layer learns for this routing, besides its weights.

        Args:
            types: number of parent types.
            pose: number of elements of a parent's pose.
            children: number of children of all types in a window.
            child_pose: number of elements of a child's pose.
        """
        return {}

    def init_parameters(self, types: int, pose: int, children: int, child_pose: int) -> dict[str, Tensor]:
        """Return initial values for each of `parameter_shapes`; zeros by default."""
        shapes = self.parameter_shapes(types, pose, children, child_pose)
        return {name: torch.zeros(shape) for name, shape in shapes.items()}

    @abstractmethod
    def route(self, votes: Float[Tensor, "b i j d"], activations: Float[Tensor, "b i"], **parameters: Tensor) -> Routed:
        """Route `votes` of children with `activations` to their parents.

        A large batch arrives in chunks of images, and is routed again in the backward pass. Implementations must
        therefore route each image independently and keep no state between calls; they may draw random numbers.
        """

    def route_inputs(self, inputs: RoutingInputs, **parameters: Tensor) -> Routed:
        """Make the votes of all windows, store them, and route them."""
        return self.route(*capsule_votes(inputs), **parameters)

    def route_windows(self, inputs: RoutingInputs, **parameters: Tensor) -> Capsules:
        """Route the children of every window to the parents at its site, whose types compete for them.

        Returns:
            Poses [b h' w' c_out d] and activations [b h' w' c_out].

        Raises:
            ArgumentError: `route` returned no `Routed`, or one with other shapes.
        """

        def route(children: Capsules) -> Capsules:
            chunk, before = inputs.with_children(children), trace_count()
            routed = self.route_inputs(chunk, **parameters)
            _check_result(self, routed, Routed, chunk.shape)
            record_routed(self.name, before, routed.couplings, routed.poses, routed.activations)
            return chunk.parents(routed.poses, routed.activations)

        return checkpointed_in_chunks(route, Capsules(inputs.poses, inputs.activations), inputs.shape.votes_per_image)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready options with the registered name; `routing_from_dict` reads them back."""
        return {"name": self.name, **dataclasses.asdict(self)}


@dataclasses.dataclass(frozen=True)
class LogisticRouting(Routing):
    """A routing whose activations are the logistic function of log-odds, which it can return instead."""

    activation_kind: ClassVar[ActivationKind] = "log-odds"

    @abstractmethod
    def with_uniform_couplings(self) -> "LogisticRouting":
        """Return this routing with couplings fixed at uniform, so that every child counts alike."""

    @abstractmethod
    def route_logits(
        self, votes: Float[Tensor, "b i j d"], activations: Float[Tensor, "b i"], **parameters: Tensor
    ) -> RoutedLogits:
        """Route as `route` does, but return log-odds."""

    def route_window_logits(self, inputs: RoutingInputs, **parameters: Tensor) -> CapsuleLogits:
        """Route as `route_windows` does, but return log-odds [b h' w' c_out].

        Raises:
            ValueError: the requested backend does not return log-odds.
        """
        before = trace_count()
        routed = self.route_logits(*capsule_votes(inputs), **parameters)
        _check_result(self, routed, RoutedLogits, inputs.shape)
        record_routed(self.name, before, routed.couplings, routed.poses, routed.log_odds.sigmoid())
        return inputs.parent_logits(routed.poses, routed.log_odds)

    def route(self, votes: Float[Tensor, "b i j d"], activations: Float[Tensor, "b i"], **parameters: Tensor) -> Routed:
        """See `Routing`."""
        return self.route_logits(votes, activations, **parameters).routed()

    def route_windows(self, inputs: RoutingInputs, **parameters: Tensor) -> Capsules:
        """See `Routing`."""
        return self.route_window_logits(inputs, **parameters).capsules()


def _check_result(routing: Routing, routed: Any, kind: type[Routed | RoutedLogits], shape: RoutingShape) -> None:
    """Check what a routing returned for votes [b i j d], because shapes of another order may fit by chance."""
    if is_traced():
        return
    result, b, i, j = f"result of routing {routing.name!r}", shape.n, shape.i, shape.c_out
    if not isinstance(routed, kind):
        raise ArgumentError(result, f"be a {kind.__name__}", type(routed).__name__)
    expected = (((b, j, shape.d), "[b j d]"), ((b, j), "[b j]"), ((b, i, j), "[b i j]"))
    for part, tensor, (sizes, axes) in zip(routed._fields, routed, expected, strict=True):
        check_shape(f"{part} of the {result}", tensor, sizes, axes)


class ProductRouting(Routing):
    """A routing that needs only weighted sums of votes and their agreements with poses.

    C++ kernels compute both on a CPU. Otherwise votes are stored, some images at a time.
    """

    fused: ClassVar[tuple[str, ...]] = ("native",)
    backend: Backend

    @abstractmethod
    def route_votes(self, votes: DenseVotes | FusedVotes, inputs: RoutingInputs, **parameters: Tensor) -> Routed:
        """Route the votes of all windows of a layer."""

    def route_windows(self, inputs: RoutingInputs, **parameters: Tensor) -> Capsules:
        """See `Routing`."""
        backend = choose_layer_backend(self, inputs)
        if backend == "native":
            routed = self.route_votes(FusedVotes(inputs), inputs, **parameters)
            return inputs.parents(routed.poses, routed.activations)
        chosen = cast(Routing, dataclasses.replace(cast(Any, self), backend=backend))
        return Routing.route_windows(chosen, inputs, **parameters)


ROUTINGS: dict[str, type[Routing]] = {}
OWN_ROUTING = "a routing of your own: --plugin FILE.py or CAPSELLA_PLUGIN"


def register_routing(routing: type[Routing]) -> type[Routing]:
    """Register a routing method under its `name`; the same class may be defined again, e.g. in a notebook.

    Raises:
        ArgumentError: another class is registered under this name.
    """
    other = ROUTINGS.get(routing.name, routing)
    is_same = (other.__module__, other.__qualname__) == (routing.__module__, routing.__qualname__)
    rule = f"not be taken: {other.__module__}.{other.__qualname__} is registered under it"
    check_argument(is_same, rule, name=routing.name)
    ROUTINGS[routing.name] = routing
    return routing


def routing_from_dict(options: dict[str, Any]) -> Routing:
    """Return the routing that `Routing.to_dict` wrote.

    Raises:
        ArgumentError: the name is not registered (suggests the nearest), or an option is unknown or of the wrong type.
    """
    rest = {option: _tuples(value) for option, value in options.items()}
    name = rest.pop("name", None)
    if name not in ROUTINGS:
        hint = f"{near_names(str(name), ROUTINGS)}; {OWN_ROUTING}"
        raise ArgumentError("routing", "be a registered name", name, hint)
    known = [field.name for field in dataclasses.fields(ROUTINGS[name])]
    for option in rest:
        if option not in known:
            raise unknown_name(f"option of routing {name!r}", option, known)
    check_types(ROUTINGS[name], rest, "routing")
    return ROUTINGS[name](**rest)


def _tuples(value: Any) -> Any:
    """Turn lists of JSON into tuples, because a routing is compared and hashed."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def check_saved(routing: Routing) -> None:
    """Check that a routing can be read back from its saved options.

    Raises:
        ArgumentError: it is not registered, or JSON cannot hold its options.
    """
    registered = ROUTINGS.get(getattr(routing, "name", "")) is type(routing)
    check_argument(registered, "be registered, by @register_routing, to be saved", routing=routing)
    try:
        same = routing_from_dict(json.loads(json.dumps(routing.to_dict()))) == routing
    except TypeError:  # JSON has no such type
        same = False
    check_argument(same, "have options of numbers, strings, or tuples of them, to be saved", routing=routing)


def stack_images(images: Sequence[tuple[Tensor, Tensor, Tensor]], votes: Float[Tensor, "b i j d"]) -> RoutedLogits:
    """Stack each image's poses [j d], log-odds [j] and couplings [i j]; an empty batch takes shapes from `votes`."""
    if images:
        return RoutedLogits(*(torch.stack(parts) for parts in zip(*images, strict=True)))
    return RoutedLogits(votes[:, 0], votes[:, 0, :, 0], votes[..., 0])
