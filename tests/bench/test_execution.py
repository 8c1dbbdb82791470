import io
import json

import pytest
import torch
from rich.console import Console
from torch import nn

from capsella.bench import ExecutionTime, ExecutionTimes, Timing, execution_times, interleaved
from capsella.errors import CapsellaError
from capsella.models import ImageClassifier, create_model
from capsella.types import Output

CPU = torch.device("cpu")


class Noting(ImageClassifier):
    """Notes how it is called."""

    def __init__(self, name, calls):
        super().__init__((4, 5), 2, ("a", "b"))
        self.name, self.note = name, calls.append  # a method of the list, which copies of this share
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, images, labels=None):
        gradients = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
        self.note((self.name, tuple(images.shape), self.training, gradients, labels is not None))
        return Output((self.scale * images.mean((1, 2, 3)))[:, None].expand(-1, 2).clamp(0, 1))


def test_contenders_take_turns():
    calls = []
    steps = {name: lambda name=name: calls.append(name) for name in "abc"}
    timings = interleaved(steps, repeats=3, seconds=0.0, device=CPU)
    assert "".join(calls) == "abcabcabc"
    assert timings["b"].rounds == 3
    assert timings["b"].shortest <= timings["b"].median <= timings["b"].longest
    with pytest.raises(ValueError, match="repeats: must be at least 1, got 0"):
        interleaved(steps, repeats=0, seconds=0.0, device=CPU)


def test_what_is_called_and_in_which_order():
    calls = []
    networks = {name: Noting(name, calls) for name in "ab"}
    times = execution_times(networks, (1, 3), repeats=2, seconds=0.0)
    assert [(row.network, row.batch, row.backward) for row in times.rows] == [
        (name, batch, backward) for batch in (1, 3) for backward in (False, True) for name in "ab"
    ]
    forward, backward = calls[:8], calls[8:16]  # two calls each to warm up, then two rounds in turn
    assert [call[0] for call in forward] == list("aabbabab")
    assert {call[1:] for call in forward} == {((1, 2, 4, 5), False, False, False)}
    assert {call[1:] for call in backward} == {((1, 2, 4, 5), True, True, True)}
    assert calls[16][1] == (3, 2, 4, 5)
    assert networks["a"].scale.grad is not None


def test_times_of_registered_networks():
    networks = {
        "capsules": create_model("sabour2017_capsnet", image_size=17, reconstruction=True),
        "em": create_model("hinton2018_matrix_capsnet_small", image_size=17),
        "cnn": create_model("hinton2018_cnn", image_size=17),
    }
    times = execution_times(networks, (2,), base="cnn", repeats=3, seconds=0.0)
    assert times.threads == torch.get_num_threads()
    assert times.device.startswith("cpu (")
    assert [row.decoder for row in times.rows[:3]] == [True, False, False]
    for forward, both in zip(times.rows[:3], times.rows[3:], strict=True):
        assert 0 < forward.timing.median < both.timing.longest
    values = json.loads(json.dumps(times.to_dict()))
    assert {"cpu", "threads", "torch"} <= set(values["environment"])
    assert values["rows"][2]["times_as_long_as_base"] == 1


def row(network, batch, backward, seconds):
    return ExecutionTime(network, False, (8, 8), 1, batch, backward, Timing(seconds, seconds, seconds, 3))


def test_ratios_compare_the_same_batch_and_pass():
    rows = (row("a", 1, False, 0.5), row("b", 1, False, 0.25), row("a", 5, True, 3.0), row("b", 5, True, 1.0))
    times = ExecutionTimes("cpu (abacus)", 2, "b", rows)
    assert [times.ratio(one) for one in rows] == [2, 1, 3, 1]
    console = Console(file=io.StringIO(), width=100)
    console.print(times.table())
    text = " ".join(console.file.getvalue().split())
    assert all(part in text for part in ("cpu (abacus), 2 threads", "× b", "500.0", "× 2.00", "3000.0", "× 3.00"))


def test_errors():
    networks = {"net": Noting("net", [])}
    for arguments, options, message in [
        (({},), {}, "networks: must hold at least one network, got none"),
        ((networks, (0,)), {}, r"batch_sizes: must be different numbers of at least 1, got \[0\]"),
        ((networks, (2, 2)), {}, r"batch_sizes: must be different numbers of at least 1, got \[2, 2\]"),
        ((networks, ()), {}, r"batch_sizes: must be different numbers of at least 1, got \[\]"),
        ((networks,), {"base": "nets"}, "base: must be a registered name, got 'nets'; did you mean net"),
        ((networks,), {"repeats": 0}, "repeats: must be at least 1, got 0"),
    ]:
        with pytest.raises(ValueError, match=message):
            execution_times(*arguments, **options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")
def test_a_gpu_that_is_not_there():
    with pytest.raises(ValueError, match="device: must be there on this machine, got cuda"):
        execution_times({"net": Noting("net", [])}, device="cuda")


def test_a_batch_that_a_network_cannot_train_on_is_named():
    network = create_model("heinsen2019_capsnet", image_size=32)
    with pytest.raises(CapsellaError, match="heinsen2019_capsnet: cannot run forward and backward on a batch of 1"):
        execution_times({"net": network}, (1,), repeats=1, seconds=0.0)
