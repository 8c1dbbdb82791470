import torch

from capsella.layers import CapsuleConv2d
from capsella.routing import DynamicRouting, dynamic_routing, random_routing, record, uniform_routing
from capsella.types import Capsules


def test_every_iteration_is_kept() -> None:
    votes = torch.randn(2, 5, 3, 4, requires_grad=True)
    with record() as traces:
        routed = dynamic_routing(votes, iterations=4)
    (trace,) = traces
    assert trace.name == "dynamic"
    assert [tuple(c.shape) for c in trace.couplings] == [(2, 5, 3)] * 4
    assert [tuple(v.shape) for v in trace.poses] == [(2, 3, 4)] * 4
    torch.testing.assert_close(trace.couplings[0], torch.full((2, 5, 3), 1 / 3))
    assert torch.equal(trace.couplings[-1], routed.couplings)
    assert torch.equal(trace.poses[-1], routed.poses)
    assert not trace.couplings[-1].requires_grad
    assert routed.poses.requires_grad


def test_layers_come_in_the_order_of_the_forward_pass() -> None:
    layers = torch.nn.Sequential(
        CapsuleConv2d(2, 4, 3, 4, kernel=2, routing=DynamicRouting(iterations=2)),
        CapsuleConv2d(3, 4, 5, 6, kernel=2),
    )
    with record() as traces:
        layers(Capsules(torch.randn(2, 3, 4, 2, 4), torch.rand(2, 3, 4, 2)))
    assert [len(trace.couplings) for trace in traces] == [2, 3]
    # b = images · positions: 2 images × 2×3 positions, then 2 images × 1×2 positions
    assert [tuple(trace.couplings[0].shape) for trace in traces] == [(12, 8, 3), (4, 12, 5)]


def test_nothing_is_kept_outside() -> None:
    votes = torch.randn(1, 2, 3, 4)
    with record() as outer:
        uniform_routing(votes)
        with record() as inner:
            random_routing(votes)
    dynamic_routing(votes)
    assert [trace.name for trace in outer] == ["uniform"]
    assert [trace.name for trace in inner] == ["random"]
