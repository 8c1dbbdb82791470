"""The stopwatch: whose turn it is, percentiles, the best batch, training batches. Its clock is set by the tests."""

import numpy as np
import pytest
import torch
from torch import nn

from capsella.bench import execution_times, stopwatch
from capsella.bench.stopwatch import Latency, best_throughput, latencies, network_latencies, timings
from capsella.errors import ArgumentError, CapsellaError
from capsella.models import ImageClassifier, create_model
from capsella.types import Output


@pytest.fixture
def told(monkeypatch):
    """A step returns how long it took."""
    monkeypatch.setattr(stopwatch, "timed", lambda step, device=None: step())


def test_percentiles_are_numpys_in_milliseconds():
    latency = Latency.of([0.001 * k for k in range(1, 201)])
    assert (latency.p50, latency.p95, latency.p99) == pytest.approx(tuple(np.percentile(range(1, 201), [50, 95, 99])))
    assert latency.calls == 200
    assert Latency.of([0.1] * 99) == Latency(pytest.approx(100), pytest.approx(100), None, 99)


def test_steps_take_turns_in_blocks_after_untimed_calls(monkeypatch):
    order = []
    clock = iter(range(10**6))
    monkeypatch.setattr(stopwatch.time, "perf_counter", lambda: (order.append("."), next(clock))[1])
    measured = latencies({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, calls=101)
    block = "{0}{0}{0}" + ".{0}." * 10
    assert "".join(order[1:]) == (block.format("a") + block.format("b")) * 11
    assert (measured["a"].calls, measured["b"].p99) == (110, 1000.0)


def test_single_calls_take_turns_until_rounds_and_seconds_are_over(told):
    calls = []
    steps = {name: lambda name=name: calls.append(name) or float(len(calls)) for name in "abc"}
    measured = timings(steps, repeats=3, seconds=0.0)
    assert "".join(calls) == "abcabcabc"
    assert measured["b"] == (5.0, 2.0, 8.0, 3)
    with pytest.raises(ArgumentError):
        timings(steps, repeats=0, seconds=0.0)


def test_the_best_batch_by_images_per_second(told):
    cost = {1: 0.004, 2: 0.010, 4: 0.006, 8: 0.030, 16: 0.060, 32: 0.001}
    tried = []

    def step(size):
        tried.append(size)
        return cost[size]

    best = best_throughput(step, [8, 1, 2, 4, 16, 32])
    assert (best.batch_size, best.images_per_second) == (4, pytest.approx(4 / 0.006))
    assert set(tried) == {1, 2, 4, 8, 16}  # two were no better, so 32 is not tried; 2 alone does not end the search
    assert tried.count(4) == 6  # one to warm up


def test_networks_get_one_image_per_call_and_no_decoder_runs(monkeypatch):
    monkeypatch.setattr(stopwatch, "MIN_CALLS", 10)
    capsules = create_model("sabour2017_capsnet", image_size=17, classes=2)
    cnn = create_model("hinton2018_cnn", image_size=17, classes=2)
    monkeypatch.setattr(capsules, "decode", None)
    seen = []
    capsules.register_forward_pre_hook(lambda *_: seen.append("decoded"))
    cnn.register_forward_pre_hook(lambda _, given: seen.append(tuple(given[0].shape)))
    measured = network_latencies({"capsules": capsules, "cnn": cnn})
    assert set(seen) == {(1, 1, 17, 17)}
    assert {name: latency.calls for name, latency in measured.items()} == {"capsules": 10, "cnn": 10}


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


def test_training_batches_are_timed_in_turn_with_and_without_gradients():
    calls = []
    networks = {name: Recorder(name, calls) for name in "ab"}
    times = execution_times(networks, (1, 3), repeats=2, seconds=0.0)
    assert [row[:3] for row in times] == [
        (name, batch, backward) for batch in (1, 3) for backward in (False, True) for name in "ab"
    ]
    forward, backward = calls[:8], calls[8:16]  # two calls each to warm up, then two rounds in turn
    assert [call[0] for call in forward] == list("aabbabab")
    assert {call[1:] for call in forward} == {((1, 2, 4, 5), False, False, False)}
    assert {call[1:] for call in backward} == {((1, 2, 4, 5), True, True, True)}
    assert calls[16][1] == (3, 2, 4, 5)
    assert networks["a"].scale.grad is not None
    network = create_model("heinsen2019_capsnet", image_size=32)
    with pytest.raises(CapsellaError, match="heinsen2019_capsnet"):  # batch normalisation of one pixel
        execution_times({"net": network}, (1,), repeats=1, seconds=0.0)
