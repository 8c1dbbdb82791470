"""Speed of networks on this machine: one image in every backend, and batches in training."""

from capsella.bench.backends import BACKENDS, MAKERS, Bench, TimedNetwork, UnavailableError, bench, bench_networks
from capsella.bench.stopwatch import (
    Latency,
    Throughput,
    Timing,
    best_throughput,
    latencies,
    network_latencies,
    time_in_turns,
    timings,
)
from capsella.bench.training import ExecutionTime, ExecutionTimes, execution_times
