"""Times of batches: what is called, in which order, and how rows are compared."""

import json

import pytest
import torch
from torch import nn

from capsella.bench import ExecutionTime, ExecutionTimes, Timing, execution_times
from capsella.errors import ArgumentError, CapsellaError
from capsella.models import ImageClassifier, create_model
from capsella.types import Output


class Recorder(ImageClassifier):
    """Records how it is called."""

    def __init__(self, name, calls):
        super().__init__((4, 5), 2, ("a", "b"))
        self.name, self.record = name, calls.append  # a method of the list, which copies of this share
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, images, labels=None):
        gradients = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
        self.record((self.name, tuple(images.shape), self.training, gradients, labels is not None))
        return Output((self.scale * images.mean((1, 2, 3)))[:, None].expand(-1, 2).clamp(0, 1))


def test_what_is_called_and_in_which_order():
    calls = []
    networks = {name: Recorder(name, calls) for name in "ab"}
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
        "cnn": create_model("hinton2018_cnn", image_size=17),
    }
    times = execution_times(networks, (2,), base="cnn", repeats=1, seconds=0.0)
    assert times.device.startswith("cpu (")
    assert [row.decoder for row in times.rows[:2]] == [True, False]
    values = json.loads(json.dumps(times.to_dict()))
    assert {"cpu", "threads", "torch"} <= set(values["environment"])
    assert values["rows"][1]["times_as_long_as_base"] == 1


def row(network, batch, backward, seconds):
    return ExecutionTime(network, False, (8, 8), 1, batch, backward, Timing(seconds, seconds, seconds, 3))


def test_ratios_compare_the_same_batch_and_pass():
    rows = (row("a", 1, False, 0.5), row("b", 1, False, 0.25), row("a", 5, True, 3.0), row("b", 5, True, 1.0))
    times = ExecutionTimes("cpu (abacus)", 2, "b", rows)
    assert [times.ratio(measured) for measured in rows] == [2, 1, 3, 1]
    cells = [list(column.cells) for column in times.table().columns]
    assert cells == [["a", "b"], ["500.0\n× 2.00", "250.0\n× 1.00"], ["3000.0\n× 3.00", "1000.0\n× 1.00"]]


def test_errors():
    networks = {"net": Recorder("net", [])}
    for argument, arguments, options in [
        ("networks", ({},), {}),
        ("batch_sizes", (networks, (0,)), {}),
        ("batch_sizes", (networks, (2, 2)), {}),
        ("batch_sizes", (networks, ()), {}),
        ("base", (networks,), {"base": "nets"}),
        ("repeats", (networks,), {"repeats": 0}),
        *([] if torch.cuda.is_available() else [("device", (networks,), {"device": "cuda"})]),
    ]:
        with pytest.raises(ArgumentError) as error:
            execution_times(*arguments, **options)
        assert error.value.argument == argument
    network = create_model("heinsen2019_capsnet", image_size=32)
    with pytest.raises(CapsellaError, match="heinsen2019_capsnet"):  # batch normalisation of one pixel
        execution_times({"net": network}, (1,), repeats=1, seconds=0.0)
