import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from capsella.layers import UpsizedConv2d

Zeros = tuple[int, int, int, int]
CENTRED = [(3, (1, 1, 1, 1)), (6, (2, 3, 2, 3)), (7, (3, 3, 3, 3)), (8, (3, 4, 4, 3))]
OTHERS = [(2, (0, 1, 1, 0)), (4, (3, 0, 0, 3)), (6, (5, 0, 3, 2))]


def written_out(layer: UpsizedConv2d, maps: Tensor) -> Tensor:
    return F.conv2d(F.pad(F.interpolate(maps, layer.size), layer.zeros), layer.weight, layer.bias)


@pytest.mark.parametrize("size", [(10, 14), (2, 4), (13, 14), (30, 21)])
@pytest.mark.parametrize(("kernel", "zeros"), CENTRED + OTHERS)
def test_it_is_the_upsizing_and_the_convolution(kernel: int, zeros: Zeros, size: tuple[int, int]) -> None:
    small = (1, 2) if size == (2, 4) else (5, 7)
    layer = UpsizedConv2d(3, 4, kernel, zeros, size).double()
    maps = torch.randn(2, 3, *small, dtype=torch.float64, requires_grad=True)
    pull = torch.randn(2, 4, *size, dtype=torch.float64)
    ours, plain = layer(maps), written_out(layer, maps)
    assert ours.shape == plain.shape
    torch.testing.assert_close(ours, plain, rtol=1e-12, atol=1e-12)
    inputs = (maps, layer.weight, layer.bias)
    gradients = zip(torch.autograd.grad(ours, inputs, pull), torch.autograd.grad(plain, inputs, pull), strict=True)
    for mine, theirs in gradients:
        torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("kernel", [2, 3])
def test_gradients_by_differences(kernel: int) -> None:
    zeros = (kernel // 2, (kernel - 1) // 2) * 2
    layer = UpsizedConv2d(2, 2, kernel, zeros, (6, 4)).double()
    maps = torch.randn(1, 2, 3, 2, dtype=torch.float64, requires_grad=True)

    def step(maps: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.func.functional_call(layer, {"weight": weight, "bias": bias}, (maps,))  # type: ignore[no-any-return]

    assert torch.autograd.gradcheck(step, (maps, layer.weight, layer.bias))


def test_the_state_is_the_convolutions() -> None:
    layer, convolution = UpsizedConv2d(3, 4, 6, (2, 3, 2, 3), (8, 8)), torch.nn.Conv2d(3, 4, 6)
    assert {name: value.shape for name, value in layer.state_dict().items()} == {
        name: value.shape for name, value in convolution.state_dict().items()
    }
    with pytest.raises(ValueError, match=r"^zeros: must"):  # which would change the size
        UpsizedConv2d(3, 4, 6, (2, 2, 2, 3), (8, 8))


def test_an_exported_graph_writes_into_no_parts() -> None:
    layer, maps = UpsizedConv2d(3, 4, 6, (2, 3, 2, 3), (8, 8)).eval(), torch.randn(2, 3, 4, 4)
    with torch.no_grad():
        program = torch.export.export(layer, (maps,), strict=False)
        torch.testing.assert_close(program.module()(maps), written_out(layer, maps), rtol=1e-5, atol=1e-5)
    names = {str(node.target) for node in program.graph.nodes}
    assert not [name for name in names if "copy_" in name or "scatter" in name]
    assert any("pixel_shuffle" in name for name in names)
