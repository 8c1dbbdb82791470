"""Where `auto` has to take eager on a CPU it says so, once for each reason; where eager is meant, it says nothing."""

import subprocess
import sys
import warnings
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import capsella
from capsella import _native
from capsella._native import _not_built
from capsella.errors import CapsellaWarning
from capsella.layers import CapsuleConv2d, DenseCapsules
from capsella.models import create_model
from capsella.routing import (
    ROUTINGS,
    CapsuleConv,
    DynamicRouting,
    EMRouting,
    Geometry,
    RandomRouting,
    SelfAttentionRouting,
    UniformRouting,
    record,
)
from capsella.routing.backends import NATIVE_MODULES, choose_conv_backend
from capsella.types import Capsules

GRID = (3, 3)
needs_kernels = pytest.mark.skipif(_native.UNAVAILABLE is not None, reason=str(_native.UNAVAILABLE))


@pytest.fixture(autouse=True)
def _nothing_said_yet(monkeypatch):
    monkeypatch.setattr("capsella.errors._warned", set())


@pytest.fixture
def not_built(monkeypatch):
    monkeypatch.setattr(_native, "UNAVAILABLE", "they are not built; build them")


@contextmanager
def heard():
    """The texts of our warnings; Python itself, which shows a warning once for each line of code, counts nothing."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        texts: list[str] = []
        yield texts
    texts += [str(one.message) for one in said if one.category is CapsellaWarning]


def layer(routing, pose=16, **options):
    return CapsuleConv2d(2, pose, 3, pose, 2, routing=routing, **options)


def children(pose=16):
    return Capsules(torch.randn(2, *GRID, 2, pose), torch.rand(2, *GRID, 2))


def conv(dtype):
    weight = torch.randn(2, 2, 2, 3, 4, 5, dtype=dtype)
    poses, activations = torch.randn(1, *GRID, 2, 4, dtype=dtype), torch.rand(1, *GRID, 2, dtype=dtype)
    return CapsuleConv(poses, activations, weight, Geometry((2, 2)))


@needs_kernels
@pytest.mark.parametrize("routing", [EMRouting(), DynamicRouting()])
def test_the_kernels_run_without_a_word(routing):
    with heard() as texts:
        layer(routing)(children())
    assert texts == []


@pytest.mark.usefixtures("not_built")
def test_kernels_that_are_not_built_are_named_once_for_all_layers_and_routings():
    with heard() as texts:
        for routing in (EMRouting(), DynamicRouting(), EMRouting(competition="types")):
            for _ in range(2):
                layer(routing)(children())
    assert texts == [
        'EM routing runs in PyTorch, 10 to 20 times slower: backend "native" cannot run here: '
        "they are not built; build them"
    ]


@pytest.mark.usefixtures("not_built")
def test_a_tied_layer_says_how_little_it_loses():
    with heard() as texts:
        DenseCapsules(GRID, 2, 16, 3, 16, tied=True, routing=DynamicRouting())(children())
    assert [text.partition(":")[0] for text in texts] == [
        "dynamic routing with tied weights runs in PyTorch, 1.5 to 3 times slower"
    ]


@needs_kernels
def test_each_reason_is_said_once():
    with heard() as texts:
        for _ in range(2):
            for dtype in (torch.float64, torch.bfloat16):
                DynamicRouting().capsule_conv(conv(dtype))
            layer(DynamicRouting(), pose=289)(children(289))
    assert [text.partition("run here: ")[2] for text in texts] == [
        'it takes float32, and the poses are torch.float64; backend="eager" does the same without this warning',
        'it takes float32, and the poses are torch.bfloat16; backend="eager" does the same without this warning',
        'it takes poses of up to 256 elements, and these have 289; backend="eager" does the same without this warning',
    ]
    assert all("\n" not in text for text in texts)


@pytest.mark.usefixtures("not_built")
@pytest.mark.parametrize(
    "routing",
    [EMRouting(backend="eager"), DynamicRouting(backend="reference"), RandomRouting(), UniformRouting()],
    ids=lambda routing: routing.name,
)
def test_nothing_is_said_where_eager_was_asked_for_or_no_kernel_exists(routing):
    with heard() as texts:
        layer(routing)(children())
    assert texts == []


@pytest.mark.usefixtures("not_built")
def test_what_is_said_of_a_routing_by_products():
    with heard() as texts:
        layer(SelfAttentionRouting())(children())
        layer(SelfAttentionRouting(backend="eager"))(children())
    (text,) = texts
    assert text.startswith("self-attention routing runs in PyTorch, three to ten times slower: backend")


@pytest.mark.usefixtures("not_built")
def test_nothing_is_said_while_couplings_are_recorded():
    with heard() as texts, record():
        layer(EMRouting())(children())
    assert texts == []


# In its own process, as the annotation checks of the tests cannot be traced.
TRACED = """
import warnings, torch
from capsella import _native
from capsella.errors import CapsellaWarning
from capsella.layers import CapsuleConv2d
from capsella.routing import DynamicRouting, EMRouting
from capsella.types import Capsules

class Poses(torch.nn.Module):
    def __init__(self, routing):
        super().__init__()
        self.layer = CapsuleConv2d(2, 4, 3, 4, 2, routing=routing)

    def forward(self, poses, activations):
        return self.layer(Capsules(poses, activations)).poses

warnings.simplefilter("error", CapsellaWarning)
_native.UNAVAILABLE = "they are not built"
children = torch.randn(2, 3, 3, 2, 4), torch.rand(2, 3, 3, 2)
for layer in (Poses(DynamicRouting()), Poses(EMRouting())):
    torch.export.export(layer, children, strict=True)
    torch.export.export(layer, children, strict=False)
    torch.jit.trace(layer, children, check_trace=False)  # the check calls the layer itself
    torch.compile(layer, fullgraph=True, backend="eager")(*children)
try:
    layer(*children)
except CapsellaWarning:
    print("said by the layer itself")
"""


def test_nothing_is_said_of_a_graph_that_is_traced_and_it_stays_one():
    done = subprocess.run([sys.executable, "-c", TRACED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "said by the layer itself\n"


@pytest.mark.usefixtures("not_built")
def test_nothing_is_said_of_a_device_that_has_no_kernels():
    on_cpu = conv(torch.float32)
    elsewhere = CapsuleConv(*(x.to("meta") for x in (on_cpu.poses, on_cpu.activations, on_cpu.weight)), on_cpu.geometry)
    with heard() as texts:
        chosen = choose_conv_backend("auto", ("eager", "native"), elsewhere, "slower")
    assert (chosen, texts) == ("eager", [])


@pytest.mark.usefixtures("not_built")
def test_a_whole_network_says_one_line():
    model = create_model("hinton2018_matrix_capsnet_small", image_size=20, channels=1, classes=3).eval()
    with heard() as texts, torch.no_grad():
        for _ in range(2):
            model(torch.rand(1, 1, 20, 20))
    assert len(texts) == 1


def test_sources_without_kernels_say_where_they_are_and_what_to_do(tmp_path):
    assert _not_built(tmp_path).startswith("capsella was installed without native kernels (CAPSELLA_NATIVE=0)")
    (tmp_path / "csrc").mkdir()
    text = _not_built(tmp_path)
    assert text.startswith(f"capsella is imported from its sources in {tmp_path}, without native kernels")
    assert f"pip install --editable {tmp_path}" in text


def test_a_program_sees_it_on_standard_error_once():
    program = (
        "import torch; from capsella.routing import CapsuleConv, Geometry, EMRouting\n"
        "z = lambda *s: torch.zeros(s, dtype=torch.float64)\n"
        "for _ in range(3):\n"
        "    conv = CapsuleConv(z(1, 1, 1, 2, 4), z(1, 1, 1, 2), z(1, 1, 2, 3, 2, 2), Geometry((1, 1), matrix=True))\n"
        "    EMRouting().capsule_conv(conv, beta_u=z(3), beta_a=z(3))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.count("EM routing runs in PyTorch") == 1


def test_all_modules_with_native_operators_are_known():
    """`capsella.routing.native` has what they share, and none of its own."""
    folder = Path(capsella.routing.__file__).parent
    found = {".".join(path.relative_to(folder).with_suffix("").parts) for path in folder.rglob("*native.py")}
    assert found - {"native"} == set(NATIVE_MODULES)


@pytest.mark.parametrize("name", ["em", "heinsen", "variational"])
def test_what_a_routing_learns_may_be_float64(name):
    torch.manual_seed(0)
    layer = DenseCapsules((2, 2), 3, 4, 3, 4, pose="matrix", routing=ROUTINGS[name]())
    children = Capsules(torch.randn(2, 2, 2, 3, 4), torch.rand(2, 2, 2, 3))
    expected = layer(children).poses
    for parameter in layer.routing_parameters.values():
        parameter.data = parameter.data.double()
    torch.testing.assert_close(layer(children).poses, expected)
