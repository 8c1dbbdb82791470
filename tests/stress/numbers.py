"""Random capsule layers: finite, the same on every backend but for rounding, and NaN for NaN.

What `draw(seed, number)` gives is the case that a finding names.
"""

import math
import random
from itertools import compress
from pathlib import Path

import torch
from torch import Tensor

from capsella.routing import ROUTINGS, Routing, RoutingInputs
from tests.routing.helpers import CONV, gradients, same_bits
from tests.stress.draws import PARAMETER, Case, draw
from tests.stress.ground import Tally

LARGEST = float(torch.finfo(torch.float32).max)
WORSE = 50  # a backend may differ by so many times the reference's own rounding
LEAST, COARSE = 1e-5, 0.1  # differences that are always allowed: between backends, and between float32 and float64
LOOKS = 20  # neighbouring inputs at which the reference's rounding is measured if a kernel seems to differ too much
BFLOAT16 = 2.0**16  # rounding of bfloat16 over that of float32
MOST_FOR_BFLOAT16 = 10.0  # larger votes are rounded by more than a softmax bears, and results must only be finite
EACH_THREADS = 4  # every fourth layer is tried with other numbers of threads, which takes as long as all else
# The largest votes for which results are finite if float32 has a number for them: their squares, or the squares of
# those, are; for self-routing the votes over its least activation, 1e-6, as in its gradients.
REACH = {"em": 1e12, "heinsen": 1e12, "variational": 1e12, "self": 1e30} | dict.fromkeys(
    ("dynamic", "self_attention", "inverted_attention", "uniform", "random"), 1e17
)


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
    conv = RoutingInputs(**{key: tensors[key] for key in CONV if key in tensors}, geometry=case.layer.geometry)
    parameters = {key.removeprefix(PARAMETER): x for key, x in tensors.items() if key.startswith(PARAMETER)}
    return list(routing.route_windows(conv, **parameters))


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
    """Return the unit of each result: its size, or a millionth of the votes or of their slopes."""
    votes = votes_of(case)
    slopes = [(votes + 1) / max(largest(x), 1e-30) for key, x in case.tensors.items() if key != "vote_offset"]
    return [max(largest(x), 1e-6 * unit) for x, unit in zip(exact, [votes, 1.0, *slopes], strict=True)]


def moved_by_rounding(case: Case, exact: list[Tensor], of: list[float]) -> list[float]:
    """Return how far float64 moves if its inputs move by half a unit of float32's last place."""
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
    """Random layers until the time is up."""
    number = 0
    while tally.has_time:
        case = draw(tally.seed, number)
        wrong = [*try_case(case, tally), *nan_case(case, random.Random(number), tally)]
        if number % EACH_THREADS == 0 and "native" in backends_of(case):
            wrong += threads_case(case, tally)
        if wrong:
            tally.found(f"layer {number} of seed {tally.seed}: {'; '.join(wrong)}; {case.what}")
        number += 1
    tally.counts["layers"] = number


def threads_case(case: Case, tally: Tally) -> list[str]:
    """1 to 8 threads give the same bits; but for sums of PyTorch's layer normalisation."""
    keys = ["poses", "activations", *(key for key in case.tensors if key != "vote_offset")]
    ours = [key not in ("routing.scale", "routing.shift") for key in keys]
    backend, before = backends_of(case)[-1], torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 5, 8):
            torch.set_num_threads(count)
            results.append([x.nan_to_num() for x in compress(run(case, torch.float32, backend), ours)])
    finally:
        torch.set_num_threads(before)
    tally.counts["threads 1 to 8"] += 1
    return [] if all(same_bits(one, results[0]) for one in results[1:]) else [f"{backend}: bits depend on the threads"]


def try_case(case: Case, tally: Tally) -> list[str]:
    """Return what is wrong with a case."""
    exact = run(case, torch.float64, plain(case))
    unit = units(case, exact)
    moved = moved_by_rounding(case, exact, unit)
    within = votes_of(case) <= REACH[case.routing.name]
    wrong: list[str] = []
    for backend in backends_of(case):
        ours = run(case, torch.float32, backend)
        tally.counts[f"{case.routing.name} {backend} {'within' if within else 'beyond'} its reach"] += 1
        if not within and (backend == "native" or not all(x.isfinite().all() for x in ours)):
            continue  # NaN or infinity says that float32 does not suffice; the kernels' logarithms hide it
        if backend == "native":
            wrong += compare(case, ours, exact, unit, [max(LEAST, WORSE * m) for m in moved], backend, tally)
        else:  # of gradients only that they are finite: EM magnifies what they round, and kernels are measured by them
            bounds = [*(max(COARSE, WORSE * m) for m in moved[:2]), *[math.inf] * len(moved[2:])]
            wrong += compare(case, ours, exact, unit, bounds, backend, tally)
            # its rounding is the reference's own
            moved = [max(m, distance(*each)) for m, *each in zip(moved, ours, exact, unit, strict=True)]
    if within:
        ours = run(case, torch.bfloat16, plain(case))[:2]
        tally.counts["in bfloat16"] += 1
        near = votes_of(case) <= MOST_FOR_BFLOAT16
        bounds = [max(COARSE, BFLOAT16 * WORSE * m) if near else math.inf for m in moved[:2]]
        wrong += compare(case, ours, exact[:2], unit[:2], bounds, "bfloat16", tally)
    return wrong


def compare(
    case: Case, ours: list[Tensor], exact: list[Tensor], unit: list[float], bounds: list[float], backend: str,
    tally: Tally,
) -> list[str]:  # fmt: skip
    """Return which results are not finite, or differ by more than their bound."""
    names = ["poses", "activations", *(f"∂{key}" for key in case.tensors if key != "vote_offset")]
    wrong = []
    for k, (mine, bound) in enumerate(zip(ours, bounds, strict=True)):
        if largest(exact[k]) > 1e-3 * LARGEST:
            continue  # float32 has no number for it
        gap = distance(mine, exact[k], unit[k])
        if not mine.isfinite().all():
            wrong.append(f"{backend}: {names[k]} is not finite, and {largest(exact[k]):.1e} in float64")
        elif gap > bound:
            tally.counts["looked at again"] += 1
            if gap > (bound := max(bound, WORSE * own_rounding(case, k))):
                wrong.append(f"{backend}: {names[k]} is {gap:.1e} away, bound {bound:.1e}")
    return wrong


def own_rounding(case: Case, k: int) -> float:
    """Return how far result k of the reference in float32 is at most from float64, at many neighbouring inputs."""
    g, most = torch.Generator().manual_seed(2), 0.0
    for _ in range(LOOKS):
        near = {
            key: (x * (1 + 1e-5 * torch.randn(x.shape, generator=g, dtype=torch.float64))).float().double()
            for key, x in case.tensors.items()
        }
        exact = run(case, torch.float64, plain(case), near)
        ours = run(case, torch.float32, plain(case), near)
        most = max(most, distance(ours[k], exact[k], units(case, exact)[k]))
    return most


def votes_of(case: Case) -> float:
    """About how large the votes are."""
    products = largest(case.tensors["poses"]) * largest(case.tensors["weight"]) * case.layer.children[1]
    return products + largest(case.tensors.get("vote_offset", torch.zeros(0))) + 1e-30


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
