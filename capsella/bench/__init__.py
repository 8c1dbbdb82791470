"""Speed of networks on this machine: one image in every backend; batches in training."""

from capsella.bench.backends import (
    BACKENDS,
    MAKERS,
    Bench,
    UnavailableError,
    bench,
    bench_networks,
    network_names,
)
from capsella.bench.stopwatch import (
    ExecutionTime,
    Latency,
    Throughput,
    Timing,
    best_throughput,
    execution_times,
    latencies,
    network_latencies,
    time_in_turns,
    timings,
)
