"""How fast networks are on this machine.

`execution.py`: forward, and forward with backward, of several networks in turn. `latency.py`: one image, and how many a
second. `backends.py`: one network in PyTorch, ONNX Runtime and OpenVINO; `networks.py`: several of them, into one file.
"""

from capsella.bench.backends import BACKENDS, MAKERS, Bench, UnavailableError, bench
from capsella.bench.execution import ExecutionTime, ExecutionTimes, Timing, execution_times, interleaved
from capsella.bench.latency import Latency, Throughput, best_throughput, latencies, network_latencies
from capsella.bench.networks import Subject, bench_networks
