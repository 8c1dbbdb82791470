"""The stopwatch: whose turn it is, percentiles, and the best batch. Its clock is set by the tests."""

import numpy as np
import pytest

from capsella.bench import stopwatch
from capsella.bench.stopwatch import Latency, best_throughput, latencies, network_latencies, timings
from capsella.errors import ArgumentError
from capsella.models import create_model


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
    measured = latencies({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, calls=101, warm_up=2)
    block = "{0}{0}" + ".{0}." * 10
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

    best = best_throughput(step, [8, 1, 2, 4, 16, 32], calls=3)
    assert (best.batch_size, best.images_per_second) == (4, pytest.approx(4 / 0.006))
    assert set(tried) == {1, 2, 4, 8, 16}  # two were no better, so 32 is not tried; 2 alone does not end the search
    assert tried.count(4) == 4  # one to warm up


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


@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("seconds", lambda: Latency.of([])),
        ("max_seconds", lambda: latencies({"a": lambda: None}, max_seconds=0)),
        ("calls", lambda: latencies({"a": lambda: None}, calls=20)),
        ("batch_sizes", lambda: best_throughput(lambda size: None, [0, 1])),
    ],
)
def test_what_cannot_be_measured(argument, call):
    with pytest.raises(ArgumentError) as error:
        call()
    assert error.value.argument == argument
