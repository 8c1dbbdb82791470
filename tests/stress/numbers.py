"""Random capsule layers: finite, the same on every backend but for rounding, and NaN for NaN.

A case is drawn from the seed and its number alone, which a finding names: `draw(seed, number)` is it again.
"""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from capsella.routing import ROUTINGS, CapsuleConv, Geometry, Routing
from tests.routing.helpers import CONV, Layer, gradients, same_bits
from tests.stress.tally import Tally

LARGEST = float(torch.finfo(torch.float32).max)
WORSE = 50
"""Times the reference's own rounding that a backend may be away from it."""
LEAST, COARSE = 1e-5, 0.1
"""Differences that are never too large, between two backends, and between float32 and float64."""
PARAMETER = "routing."
REACH = {"em": 1e12, "heinsen": 1e12, "variational": 1e12, "self": 1e34} | dict.fromkeys(
    ("dynamic", "self_attention", "inverted_attention", "uniform", "random"), 1e17
)
"""The largest votes for which all that float32 has a number for is finite: their squares, or those' squares, are."""
SETTINGS: dict[str, dict[str, list[Any]]] = {
    "dynamic": {"iterations": [1, 2, 3, 5], "bias": [False, True], "leaky": [False, True]},
    "em": {
        "iterations": [1, 2, 3, 4],
        "competition": ["all", "types"],
        "inverse_temperature": [0.01, 0.01, 1.0],
        "cost_scale": [None, 1.0, 100.0],
        "standardise_costs": [False, False, True],
        "early_sharpness": [1.0, 0.1],
        "start": ["even", "random"],
        "variance_floor": [1e-4, 1e-8, 0.5],
        "beta_a_scale": [None, None, 5000.0],
    },
    "heinsen": {"iterations": [1, 2, 3], "shared": [False, True], "bias": [False, True]},
    "variational": {"iterations": [1, 2, 3], "proportions": [True, False]},
    "self_attention": {"prior": [False, True]},
    "self": {},
    "inverted_attention": {"iterations": [1, 2, 3]},
    "uniform": {},
    "random": {"seed": [0, 7]},
}


@dataclass(frozen=True)
class Case:
    """A layer, its routing and its inputs in float64; `what` says them in a line."""

    routing: Routing
    layer: Layer
    tensors: dict[str, Tensor]
    what: str


def draw(seed: int, number: int) -> Case:
    """The case of this number."""
    rng = random.Random(f"{seed} {number}")
    name = rng.choice(sorted(ROUTINGS))
    layer = draw_layer(rng)
    options = {option: rng.choice(values) for option, values in SETTINGS[name].items()}
    if options.get("standardise_costs") and layer.parents[0] < 3:
        options["standardise_costs"] = False
    if options.get("standardise_costs"):
        options["inverse_temperature"] = 20.0
    if options.get("beta_a_scale"):  # as its authors pair it; else its gradients are what a million rounds
        options["inverse_temperature"] = 0.01
    routing = ROUTINGS[name](**options)
    scale, poses, activations = rng.choice(SCALES), rng.choice(list(POSES)), rng.choice(list(ACTIVATIONS))
    tensors = tensors_of(routing, layer, torch.Generator().manual_seed(number), rng.choice([0.1, 1.0]))
    tensors["poses"] = scale * POSES[poses](tensors["poses"])
    tensors["activations"] = ACTIVATIONS[activations](tensors["activations"])
    if rng.random() < 0.6:
        del tensors["vote_offset"]
    what = f"{routing} {layer} poses {scale:.0e}·{poses}, activations {activations}"
    # As a user's float32 layer has them: all backends start from the same bits.
    return Case(routing, layer, {key: value.float().double() for key, value in tensors.items()}, what)


def tensors_of(
    routing: Routing, layer: Layer, generator: torch.Generator, weight_scale: float = 1.0
) -> dict[str, Tensor]:
    """Children, weight and offset, and what the routing learns, a little away from where it starts."""
    tensors = layer.tensors(weight_scale, generator)
    children = layer.geometry.kernel[0] * layer.geometry.kernel[1] * layer.children[0]
    first = routing.first_parameters(layer.parents[0], layer.parents[1], children, layer.children[1])
    for key, value in first.items():
        noise = torch.randn(value.shape, generator=generator, dtype=torch.float64)
        tensors[PARAMETER + key] = value.double() + 0.1 * noise
    return tensors


SCALES = [1e-30, 1e-20, 1e-10, 1e-4, 1.0, 1.0, 1.0, 10.0, 1e3, 1e6, 1e10, 1e15, 1e20, 1e30]
POSES = {
    "normal": lambda x: x,
    "zeros": torch.zeros_like,
    "equal": lambda x: x[:1, :1, :1, :1].expand_as(x).clone(),
    "one large": lambda x: x * (1.0 + 1e3 * (torch.arange(x.numel()).reshape(x.shape) == 0)),
    "half zeros": lambda x: x * (torch.arange(x.shape[3]) % 2)[:, None],
    "mostly 1e-30": lambda x: torch.where(torch.arange(x.shape[3])[:, None] == 0, x, 1e-30 * x),
}
ACTIVATIONS = {
    "random": lambda a: a,
    "0": torch.zeros_like,
    "1": torch.ones_like,
    "0 or 1": torch.round,
    "1e-30": lambda a: torch.full_like(a, 1e-30),
    "nearly 1": lambda a: 1 - 1e-7 * a,
}


def draw_layer(rng: random.Random) -> Layer:
    """A small layer of any geometry: every kernel path has its widths."""
    kernel = rng.choice([(1, 1), (2, 2), (3, 3), (1, 3), (2, 1), (4, 4)])
    grid = tuple(k + rng.choice([0, 0, 1, 2, 4]) for k in kernel)
    matrix = rng.random() < 0.5
    children, parents = rng.choice([1, 2, 3, 8]), rng.choice([1, 2, 3, 5, 10, 17, 33])
    p = rng.choice([1, 4, 9, 16] if matrix else [1, 2, 5, 8, 16])
    d = p if matrix else rng.choice([1, 3, 8, 16])
    stride = (rng.choice([1, 1, 2, 3]), rng.choice([1, 1, 2]))
    geometry = Geometry(kernel, stride, tied=rng.random() < 0.3, matrix=matrix)
    return Layer(rng.choice([1, 1, 2, 3]), grid, geometry, (children, p), (parents, d))


def run(case: Case, dtype: torch.dtype, backend: str, tensors: dict[str, Tensor] | None = None) -> list[Tensor]:
    """Poses, activations and all gradients."""
    mine = {
        key: x.detach().to(dtype).requires_grad_(key != "vote_offset")
        for key, x in (case.tensors if tensors is None else tensors).items()
    }
    out = routed(case, backend, mine)
    return [*out, *gradients(out, [x for x in mine.values() if x.requires_grad], unused=True)]


def routed(case: Case, backend: str, tensors: dict[str, Tensor]) -> list[Tensor]:
    """Poses and activations."""
    routing = case.routing if backend == "auto" else with_backend(case.routing, backend)
    conv = CapsuleConv(**{key: tensors[key] for key in CONV if key in tensors}, geometry=case.layer.geometry)
    parameters = {key.removeprefix(PARAMETER): x for key, x in tensors.items() if key.startswith(PARAMETER)}
    return list(routing.capsule_conv(conv, **parameters))


def with_backend(routing: Routing, backend: str) -> Routing:
    values = {**routing.to_dict(), "backend": backend}
    return ROUTINGS[values.pop("name")](**values)


def backends_of(case: Case) -> list[str]:
    """Those in float32 on a CPU; couplings that never change have but one."""
    if not hasattr(case.routing, "backend"):
        return ["auto"]
    return ["eager", *(["native"] if "native" in case.routing.fused and takes_native(case) else [])]


def takes_native(case: Case) -> bool:
    return not (case.routing.name == "dynamic" and case.layer.geometry.tied and "vote_offset" in case.tensors)


def largest(x: Tensor) -> float:
    return float(x.detach().double().abs().max()) if x.numel() else 0.0


def units(case: Case, exact: list[Tensor]) -> list[float]:
    """What a millionth of each result is measured in where it is smaller still: the votes, and their slopes."""
    votes = votes_of(case)
    slopes = [(votes + 1) / max(largest(x), 1e-30) for key, x in case.tensors.items() if key != "vote_offset"]
    return [max(largest(x), 1e-6 * unit) for x, unit in zip(exact, [votes, 1.0, *slopes], strict=True)]


def moved_by_rounding(case: Case, exact: list[Tensor], of: list[float]) -> list[float]:
    """How far float64 goes where its inputs move by half a unit of float32's last place."""
    moved = [0.0] * len(exact)
    for seed in (0, 1):
        g = torch.Generator().manual_seed(seed)
        near = {
            key: x * (1 + 6e-8 * torch.randn(x.shape, generator=g, dtype=torch.float64))
            for key, x in case.tensors.items()
        }
        other = run(case, torch.float64, plain(case), near)
        moved = [max(m, distance(*each)) for m, *each in zip(moved, other, exact, of, strict=True)]
    return moved


def plain(case: Case) -> str:
    """The backend that every routing has."""
    return "eager" if hasattr(case.routing, "backend") else "auto"


def distance(ours: Tensor, exact: Tensor, unit: float) -> float:
    return float((ours.detach().double() - exact.detach()).abs().max()) / unit if exact.numel() else 0.0


def campaign(tally: Tally, folder: Path) -> None:
    """Random layers until the time is up; threads and the operators' contracts come first."""
    operators(tally)
    number = 0
    while tally.has_time:
        case = draw(tally.seed, number)
        wrong = [*try_case(case, tally), *nan_case(case, random.Random(number), tally)]
        if "native" in backends_of(case):
            wrong += threads_case(case, tally)
        if wrong:
            tally.found(f"layer {number} of seed {tally.seed}: {'; '.join(wrong)}; {case.what}")
        number += 1
    tally.counts["layers"] = number


def operators(tally: Tally) -> None:
    """`torch.library.opcheck` for every operator of the package, with the calls that layers make."""
    calls: dict[str, tuple[Any, tuple[Any, ...]]] = {}

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, operator: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
            if operator.namespace == "capsella":
                calls.setdefault(str(operator), (operator, tuple(_detached(one) for one in args)))
            return operator(*args, **(kwargs or {}))

    geometry = Geometry((2, 2), (1, 1), matrix=True)
    layer = Layer(2, (3, 3), geometry, (2, 4), (3, 4))
    for name in sorted(ROUTINGS):
        routing = ROUTINGS[name]()
        case = Case(routing, layer, tensors_of(routing, layer, torch.Generator().manual_seed(0)), name)
        with Watch():
            run(case, torch.float32, "native" if "native" in routing.fused else "auto")
    for name, (operator, arguments) in calls.items():
        asking = tuple(_asking(one) for one in arguments) if "backward" not in name else arguments
        try:
            torch.library.opcheck(operator, asking)
        except Exception as error:
            tally.found(f"opcheck of {name}: {str(error)[-300:]}")
        tally.counts["operators checked"] += 1


def _detached(value: Any) -> Any:
    if isinstance(value, list):
        return [_detached(one) for one in value]
    return value.detach().clone() if isinstance(value, Tensor) else value


def _asking(value: Any) -> Any:
    return value.requires_grad_() if isinstance(value, Tensor) and value.is_floating_point() else value


def threads_case(case: Case, tally: Tally) -> list[str]:
    """1 to 8 threads give the same bits."""
    backend, before = backends_of(case)[-1], torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 5, 8):
            torch.set_num_threads(count)
            results.append([x.nan_to_num() for x in run(case, torch.float32, backend)])
    finally:
        torch.set_num_threads(before)
    tally.counts["threads 1 to 8"] += 1
    return [] if all(same_bits(one, results[0]) for one in results[1:]) else [f"{backend}: bits depend on the threads"]


def try_case(case: Case, tally: Tally) -> list[str]:
    """What is wrong with it."""
    exact = run(case, torch.float64, plain(case))
    names = ["poses", "activations", *(f"∂{key}" for key in case.tensors if key != "vote_offset")]
    unit = units(case, exact)
    moved = moved_by_rounding(case, exact, unit)
    within = votes_of(case) <= REACH[case.routing.name]
    wrong: list[str] = []
    for backend in backends_of(case):
        ours = run(case, torch.float32, backend)
        tally.counts[f"{case.routing.name} {backend} {'within' if within else 'beyond'} its reach"] += 1
        finite = [bool(x.isfinite().all()) for x in ours]
        if not within and (backend == "native" or not all(finite)):
            continue  # NaN or infinity says that float32 does not suffice; the kernels' logarithms hide it
        for k, name in enumerate(names):
            if largest(exact[k]) > 1e-3 * LARGEST:
                continue  # float32 has no number for it
            if backend != "native" and k > 1:
                continue  # what measures others is measured by what it gives, and EM magnifies what gradients round
            bound = max(LEAST if backend == "native" else COARSE, WORSE * moved[k])
            if not finite[k]:
                wrong.append(f"{backend}: {name} is not finite, and {largest(exact[k]):.1e} in float64")
            elif (gap := distance(ours[k], exact[k], unit[k])) > bound:
                wrong.append(f"{backend}: {name} is {gap:.1e} away, bound {bound:.1e}")
        if backend == "eager":  # its rounding is the reference's own
            moved = [max(m, distance(*each)) for m, *each in zip(moved, ours, exact, unit, strict=True)]
    return wrong


def votes_of(case: Case) -> float:
    """About how large the votes are."""
    return largest(case.tensors["poses"]) * largest(case.tensors["weight"]) * case.layer.children[1] + 1e-30


def nan_case(case: Case, rng: random.Random, tally: Tally) -> list[str]:
    """A NaN in an input that a window reads shows in the poses of its image, whatever the backend."""
    key = rng.choice(["poses", "weight"])
    tensors = {name: x.float() for name, x in case.tensors.items()}
    tensors[key].view(-1)[0] = torch.nan  # of the first image and the first window
    wrong = []
    for backend in backends_of(case):
        poses = routed(case, backend, tensors)[0]
        tally.counts["NaN in"] += 1
        if not poses[0, 0, 0].isnan().any():
            wrong.append(f"{backend}: NaN in {key}, and none in the poses")
    return wrong
