import time

import numpy as np
import pytest
import torch

from capsella.bench import latency
from capsella.bench.latency import Latency, best_throughput, latencies, network_latencies
from capsella.data import ImageSet
from capsella.models import create_model


def test_percentiles_are_numpys_in_milliseconds():
    seconds = [0.001 * k for k in range(1, 201)]
    found = Latency.of(seconds)
    assert (found.p50, found.p95, found.p99) == pytest.approx(tuple(np.percentile(range(1, 201), [50, 95, 99])))
    assert found.calls == 200


def test_too_few_calls_have_no_99th_percentile():
    assert Latency.of([0.1] * 99) == Latency(pytest.approx(100), pytest.approx(100), None, 99)
    with pytest.raises(ValueError, match="seconds: must be of at least one call, got none"):
        Latency.of([])
    with pytest.raises(ValueError, match="most_seconds: must be positive, got 0"):
        latencies({"a": lambda: None}, most_seconds=0)
    with pytest.raises(ValueError, match="most_seconds: must be positive, got -1"):
        best_throughput(lambda size: None, [1], most_seconds=-1)
    with pytest.raises(ValueError, match="calls: must be at least 100 for a 99th percentile, got 20"):
        latencies({"a": lambda: None}, calls=20)
    with pytest.raises(ValueError, match="warm_up: must not be negative, got -1"):
        latencies({"a": lambda: None}, warm_up=-1)


def test_steps_take_turns_in_blocks_after_untimed_calls(monkeypatch):
    order = []
    clock = iter(range(10**6))
    monkeypatch.setattr(latency.time, "perf_counter", lambda: (order.append("."), next(clock))[1])
    found = latencies({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, calls=101, warm_up=2)
    block = "{0}{0}" + ".{0}." * 10
    assert "".join(order) == (block.format("a") + block.format("b")) * 11
    assert (found["a"].calls, found["b"].p99) == (110, 1000.0)


def test_a_slow_step_has_fewer_calls_and_the_others_all_of_theirs(monkeypatch):
    monkeypatch.setattr(latency, "timed", lambda step: step())  # a step answers how long it took
    found = latencies({"slow": lambda: 0.01, "quick": lambda: 0.001}, calls=100, most_seconds=0.15)
    assert (found["slow"].calls, found["quick"].calls) == (20, 100)
    assert found["slow"].p99 is None


def test_batches_that_take_too_long_are_not_tried(monkeypatch):
    monkeypatch.setattr(latency, "timed", lambda step: step())
    seen = []

    def step(size):
        seen.append(size)
        return 0.01 * size**0.5

    assert best_throughput(step, [1, 4, 16, 64], calls=1, most_seconds=0.1).batch_size == 4
    assert set(seen) == {1, 4}  # 2 calls of 16 images at 200 a second would take 0.16 s


def test_a_slow_first_call_is_no_latency():
    slept = []

    def step():
        if len(slept) < 3:
            slept.append(time.sleep(0.05))

    assert latencies({"a": step}, calls=100)["a"].p99 < 40


def test_the_best_batch_by_images_a_second():
    cost = {1: 0.004, 2: 0.010, 4: 0.006, 8: 0.030, 16: 0.060, 32: 0.001}
    seen = []

    def step(size):
        seen.append(size)
        time.sleep(cost[size])

    best = best_throughput(step, [8, 1, 2, 4, 16, 32], calls=3)
    assert best.batch_size == 4
    assert 300 < best.images_per_second < 670
    assert set(seen) == {1, 2, 4, 8, 16}  # two were no better, so 32 is not tried; 2 alone does not end the search
    assert seen.count(4) == 4  # one to warm up


@pytest.mark.parametrize("sizes", [[], [0, 1]])
def test_batch_sizes_that_are_none(sizes):
    with pytest.raises(ValueError, match="batch_sizes: must be at least one number of at least 1"):
        best_throughput(lambda size: None, sizes)


def test_networks_take_one_image_a_call_and_no_decoder_is_asked(monkeypatch):
    capsules = create_model("sabour2017_capsnet", image_size=17, classes=2)
    cnn = create_model("hinton2018_cnn", image_size=17, classes=2)
    images = ImageSet(torch.zeros(3, 1, 17, 17, dtype=torch.uint8), torch.tensor([0, 1, 0]), ("a", "b"))
    monkeypatch.setattr(capsules, "decode", None)
    seen = []
    capsules.register_forward_pre_hook(lambda *_: seen.append("decoded"))
    cnn.register_forward_pre_hook(lambda _, given: seen.append(tuple(given[0].shape)))
    found = network_latencies({"capsules": capsules, "cnn": cnn}, images)
    assert set(seen) == {(1, 1, 17, 17)}
    assert {name: one.calls for name, one in found.items()} == {"capsules": 100, "cnn": 100}
