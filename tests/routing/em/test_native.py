"""What the C++ kernels of EM routing refuse, leave to eager and keep; tests/routing/test_mixture_native.py has more."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from capsella import _native
from capsella.layers import CapsuleConv2d
from capsella.routing import CapsuleConv, EMRouting, Geometry, record
from capsella.routing.mixture import first_arguments
from capsella.types import Capsules
from tests.routing.helpers import CONV, LAYERS, Layer, asking, route

pytestmark = pytest.mark.skipif(_native.UNAVAILABLE is not None, reason=str(_native.UNAVAILABLE))


def with_betas(layer: Layer) -> dict[str, Tensor]:
    betas = torch.zeros(layer.parents[0], dtype=torch.float64)
    return {**layer.tensors(), "beta_u": betas, "beta_a": betas}


def test_recording_keeps_couplings_whatever_the_backend() -> None:
    layer = CapsuleConv2d(2, 4, 3, 4, 2, pose="matrix", routing=EMRouting(backend="native"))
    parents = Capsules(torch.randn(1, 3, 3, 2, 4), torch.rand(1, 3, 3, 2))
    expected = layer(parents)
    with record() as traces:
        recorded = layer(parents)
    assert len(traces[0].couplings) == 3
    torch.testing.assert_close(recorded.poses, expected.poses)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": torch.float64}, "takes float32, and the poses are torch.float64"),
        ({"device": "meta"}, "runs on the CPU, and the poses are on meta"),
    ],
)
def test_asking_for_what_cannot_run(change: dict[str, Any], message: str) -> None:
    layer = Layer(1, (3, 3), Geometry((2, 2), matrix=True), (2, 4), (3, 4))
    tensors = {name: tensor.float().to(**change) for name, tensor in with_betas(layer).items()}
    with pytest.raises(ValueError, match=message):
        route(EMRouting(backend="native"), layer.geometry, tensors)


def test_poses_too_large_and_offsets_to_be_learned_are_left_to_eager() -> None:
    routing = EMRouting(iterations=1)
    for p, offset in ((17 * 17, None), (4, torch.zeros(3, 3, 4, requires_grad=True))):
        layer = Layer(1, (3, 3), Geometry((2, 2), matrix=True), (1, p), (2, p))
        tensors = {name: tensor.float() for name, tensor in with_betas(layer).items()} | {"vote_offset": offset}
        assert route(routing, layer.geometry, tensors)[0].isfinite().all()
        with pytest.raises(ValueError, match=r"takes poses of up to 256|takes vote_offset as a constant"):
            route(EMRouting(backend="native"), layer.geometry, tensors)


@pytest.mark.usefixtures("as_users_call")
def test_the_operator_keeps_torch_s_contract() -> None:
    from capsella.routing.em.native import Call, _em_capsule_conv

    for name, everywhere in (("4×4 poses", True), ("tied", False)):
        tensors = asking(with_betas(LAYERS[name]), torch.float32, without=["vote_offset"])
        conv = CapsuleConv(**{key: tensors[key] for key in CONV}, geometry=LAYERS[name].geometry)
        call = Call(
            **first_arguments(conv, torch.stack([tensors["beta_u"], tensors["beta_a"]])),
            inverse_temperatures=[0.1, 0.2],
            sharpness=[0.5, 1.0],
            variance_floor=1e-4,
            cost_scale=0.0,
            standardise=False,
            compete_everywhere=everywhere,
            bfloat16_votes=everywhere,
        )
        torch.library.opcheck(_em_capsule_conv, tuple(call))


class Routed(Dataset[Tensor]):
    """Images routed in the worker process that loads them."""

    def __init__(self) -> None:
        self.layer = CapsuleConv2d(2, 4, 3, 4, 2, pose="matrix", routing=EMRouting(backend="native"))
        self.children = Capsules(torch.randn(4, 3, 3, 2, 4), torch.rand(4, 3, 3, 2))

    def __len__(self) -> int:
        return 4

    def __getitem__(self, k: int) -> Tensor:
        with torch.no_grad():
            poses: Tensor = self.layer(Capsules(self.children.poses[k : k + 1], self.children.activations[k : k + 1]))[
                0
            ]
        return poses[0]


def test_forked_workers_live(threads: Callable[[int], None]) -> None:
    """A fork copies no threads: kernels that waited for those of the parent would hang."""
    threads(2)
    routed = Routed()
    expected = routed.layer(routed.children).poses.detach()  # the parent's threads have run
    loader = DataLoader(routed, batch_size=2, num_workers=2, multiprocessing_context="fork", timeout=60)
    torch.testing.assert_close(torch.cat(list(loader)), expected)
