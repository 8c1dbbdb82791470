"""What a routing method is to a capsule layer: options, the parameters it learns, and two entry points."""

import dataclasses
from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from capsella.errors import unknown_name
from capsella.routing.convolution import Geometry, capsule_votes
from capsella.types import Capsules


class Routed(NamedTuple):
    """The result of routing one set of votes.

    poses: [b j d], the parents' poses.
    activations: [b j], in [0, 1].
    couplings: [b i j] of the last iteration; how much of child i went to parent j.
    """

    poses: Float[Tensor, "b j d"]
    activations: Float[Tensor, "b j"]
    couplings: Float[Tensor, "b i j"]


@dataclasses.dataclass(frozen=True)
class Routing(ABC):
    """Options of a routing method. Subclasses are final, frozen, and registered under `name`."""

    name: ClassVar[str]
    compares_poses: ClassVar[bool] = False
    """Whether votes are weighed by their distance from the parent's pose, not by their direction: square weights of
    layers then start near the identity."""

    def parameter_shapes(self, types: int, pose: int, children: int) -> dict[str, tuple[int, ...]]:
        """Name and shape of what a layer must learn for it, beside its weights.

        `types`: parent types; `pose`: a parent's pose elements; `children`: all those in a window.
        """
        return {}

    def first_parameters(self, types: int, pose: int, children: int) -> dict[str, Tensor]:
        """What training starts from, for each of `parameter_shapes`: zeros, if nothing else is said."""
        shapes = self.parameter_shapes(types, pose, children)
        return {name: torch.zeros(shape) for name, shape in shapes.items()}

    @abstractmethod
    def route(self, votes: Float[Tensor, "b i j d"], activations: Float[Tensor, "b i"], **parameters: Tensor) -> Routed:
        """Route `votes` of children with `activations` to their parents."""

    def capsule_conv(
        self,
        poses: Float[Tensor, "b h w c_in p"],
        activations: Float[Tensor, "b h w c_in"],
        weight: Float[Tensor, "kh kw c_in c_out q d"],
        geometry: Geometry,
        vote_offset: Float[Tensor, "h w d_out"] | None = None,
        **parameters: Tensor,
    ) -> Capsules:
        """Route every window of the grid to the parents at its position; the types there compete for its children.

        `weight` and `vote_offset` as in `capsule_votes`. Returns poses [b h' w' c_out d_out] and activations
        [b h' w' c_out].
        """
        votes, children, (batch, rows, columns) = capsule_votes(poses, activations, weight, geometry, vote_offset)
        routed = self.route(votes, children, **parameters)
        grid = (batch, rows, columns, weight.shape[3])
        return Capsules(routed.poses.reshape(*grid, routed.poses.shape[2]), routed.activations.reshape(grid))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready options with the registered name; `routing_from_dict` reads them back."""
        return {"name": self.name, **dataclasses.asdict(self)}


ROUTINGS: dict[str, type[Routing]] = {}


def register_routing(routing: type[Routing]) -> type[Routing]:
    """Make a routing method known by its `name`."""
    ROUTINGS[routing.name] = routing
    return routing


def routing_from_dict(options: dict[str, Any]) -> Routing:
    """The routing that `Routing.to_dict` wrote.

    Raises:
        ValueError: the name is not registered (suggests the nearest), or an option is not one of that routing's.
    """
    rest = dict(options)
    name = rest.pop("name", None)
    if name not in ROUTINGS:
        raise unknown_name("routing", str(name), ROUTINGS)
    known = {field.name for field in dataclasses.fields(ROUTINGS[name])}
    if unknown := sorted(set(rest) - known):
        raise unknown_name(f"option of routing {name!r}", unknown[0], known)
    return ROUTINGS[name](**rest)
