"""What a routing method is to a capsule layer: options, the parameters it learns, and two entry points."""

import dataclasses
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from capsella.errors import check_types, unknown_name
from capsella.routing.convolution import CapsuleConv, capsule_votes
from capsella.routing.parts import in_parts
from capsella.routing.recording import is_recording, record_routed, traces_kept
from capsella.types import Capsules, ScoredCapsules

ActivationKind = Literal["lengths", "log-odds", "shares", "none"]
"""lengths: of the parents' squashed poses. log-odds: their logistic function, as of a `LogisticRouting`. shares: of the
children, by their poses and not by votes; they sum to 1 over the parents. none: all are 1."""


class Routed(NamedTuple):
    """The result of routing one set of votes.

    poses: [b j d], the parents' poses.
    activations: [b j], in [0, 1].
    couplings: [b i j] of the last iteration; how much of child i went to parent j.
    """

    poses: Float[Tensor, "b j d"]
    activations: Float[Tensor, "b j"]
    couplings: Float[Tensor, "b i j"]


class Scored(NamedTuple):
    """As `Routed`, before the logistic function.

    poses: [b j d], the parents' poses.
    log_odds: [b j], ln a/(1 − a) of their activations a.
    couplings: [b i j] of the last iteration.
    """

    poses: Float[Tensor, "b j d"]
    log_odds: Float[Tensor, "b j"]
    couplings: Float[Tensor, "b i j"]

    @classmethod
    def of_images(cls, images: Sequence[tuple[Tensor, Tensor, Tensor]], votes: Float[Tensor, "b i j d"]) -> "Scored":
        """Of the same for each image, [j d], [j] and [i j], of which there may be none."""
        if images:
            return cls(*(torch.stack(parts) for parts in zip(*images, strict=True)))
        return cls(votes[:, 0], votes[:, 0, :, 0], votes[..., 0])

    def routed(self) -> Routed:
        """With the activations."""
        return Routed(self.poses, self.log_odds.sigmoid(), self.couplings)


@dataclasses.dataclass(frozen=True)
class Routing(ABC):
    """Options of a routing method. Subclasses are final, frozen, and registered under `name`."""

    name: ClassVar[str]
    compares_poses: ClassVar[bool] = False
    """Whether votes are weighed by their distance from the parent's pose, not by their direction: square weights of
    layers then start near the identity."""

    fused: ClassVar[tuple[str, ...]] = ()
    """Its fused backends, which hold no votes: "native", "triton", or none. Where there is one, an option `backend`
    chooses."""

    activation_kind: ClassVar[ActivationKind] = "lengths"
    """What its activations are, by which networks choose the layers around it."""

    @property
    def has_activations(self) -> bool:
        """Whether parents have activations; without, a network must read its classes off their poses."""
        return self.activation_kind != "none"

    def parameter_shapes(self, types: int, pose: int, children: int, child_pose: int) -> dict[str, tuple[int, ...]]:
        """Name and shape of what a layer must learn for it, beside its weights.

        `types`: parent types; `pose`: a parent's pose elements; `children`: all those in a window; `child_pose`: a
        child's pose elements.
        """
        return {}

    def first_parameters(self, types: int, pose: int, children: int, child_pose: int) -> dict[str, Tensor]:
        """What training starts from, for each of `parameter_shapes`: zeros, if nothing else is said."""
        shapes = self.parameter_shapes(types, pose, children, child_pose)
        return {name: torch.zeros(shape) for name, shape in shapes.items()}

    @abstractmethod
    def route(self, votes: Float[Tensor, "b i j d"], activations: Float[Tensor, "b i"], **parameters: Tensor) -> Routed:
        """Route `votes` of children with `activations` to their parents.

        A large batch comes in parts of some images, and is routed again in the backward pass. So each image is routed
        by itself, and nothing is counted or kept from call to call; random numbers may be drawn.
        """

    def capsule_conv(self, conv: CapsuleConv, **parameters: Tensor) -> Capsules:
        """Route every window of the grid to the parents at its site; the types there compete for its children.

        Returns poses [b h' w' c_out d] and activations [b h' w' c_out].
        """

        def route(children: Capsules) -> Capsules:
            part, before = conv.of(children), traces_kept()
            routed = self.route(*capsule_votes(part), **parameters)
            if is_recording():
                record_routed(self.name, before, routed.couplings, routed.poses, routed.activations)
            return part.parents(routed.poses, routed.activations)

        return in_parts(route, Capsules(conv.poses, conv.activations), conv.sizes.votes_of_an_image)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready options with the registered name; `routing_from_dict` reads them back."""
        return {"name": self.name, **dataclasses.asdict(self)}


@dataclasses.dataclass(frozen=True)
class LogisticRouting(Routing):
    """A routing whose activations are the logistic function of log-odds, which it can hand over instead."""

    activation_kind: ClassVar[ActivationKind] = "log-odds"

    @abstractmethod
    def once(self) -> "LogisticRouting":
        """The same with even couplings that stay so: what the votes say when every child counts alike."""

    @abstractmethod
    def score(self, votes: Float[Tensor, "b i j d"], activations: Float[Tensor, "b i"], **parameters: Tensor) -> Scored:
        """As `route`, with log-odds."""

    def score_conv(self, conv: CapsuleConv, **parameters: Tensor) -> ScoredCapsules:
        """As `capsule_conv`, with log-odds [b h' w' c_out].

        Raises:
            ValueError: a backend that gives activations alone was asked for.
        """
        before = traces_kept()
        scored = self.score(*capsule_votes(conv), **parameters)
        if is_recording():
            record_routed(self.name, before, scored.couplings, scored.poses, scored.log_odds.sigmoid())
        return conv.scored_parents(scored.poses, scored.log_odds)

    def route(self, votes: Float[Tensor, "b i j d"], activations: Float[Tensor, "b i"], **parameters: Tensor) -> Routed:
        """See `Routing`."""
        return self.score(votes, activations, **parameters).routed()

    def capsule_conv(self, conv: CapsuleConv, **parameters: Tensor) -> Capsules:
        """See `Routing`."""
        return self.score_conv(conv, **parameters).capsules()


ROUTINGS: dict[str, type[Routing]] = {}


def register_routing(routing: type[Routing]) -> type[Routing]:
    """Make a routing method known by its `name`."""
    ROUTINGS[routing.name] = routing
    return routing


def routing_from_dict(options: dict[str, Any]) -> Routing:
    """The routing that `Routing.to_dict` wrote.

    Raises:
        ValueError: the name is not registered (suggests the nearest), an option is not one of that routing's, or of
            another type.
    """
    rest = {option: _tuples(value) for option, value in options.items()}
    name = rest.pop("name", None)
    if name not in ROUTINGS:
        raise unknown_name("routing", str(name), ROUTINGS)
    known = [field.name for field in dataclasses.fields(ROUTINGS[name])]
    for option in rest:
        if option not in known:
            raise unknown_name(f"option of routing {name!r}", option, known)
    check_types(ROUTINGS[name], rest, "routing")
    return ROUTINGS[name](**rest)


def _tuples(value: Any) -> Any:
    """JSON has lists where options are tuples, since a routing is compared and hashed."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def check_saved(routing: Routing) -> None:
    """What is saved of the routing brings it back.

    Raises:
        ValueError: it is not registered, or JSON has no such options.
    """
    if ROUTINGS.get(getattr(routing, "name", "")) is not type(routing):
        raise ValueError(f"routing: must be registered, by @register_routing, to be saved; got {routing}")
    try:
        same = routing_from_dict(json.loads(json.dumps(routing.to_dict()))) == routing
    except TypeError:  # not for JSON
        same = False
    if not same:
        raise ValueError(f"routing: must have options of numbers, words, or tuples of them, to be saved; got {routing}")
