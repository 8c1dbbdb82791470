"""Networks in every backend: latency of a single image, throughput, and the difference from eager PyTorch."""

import contextlib
import gc
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from capsella import _native
from capsella.bench.stopwatch import Latency, Throughput, best_throughput, latencies
from capsella.data import ImageSet, evenly, single_images
from capsella.environment import environment
from capsella.errors import ArgumentError, CapsellaError, check_argument, near_names, pluralize, unknown_name
from capsella.export.graph import Exportable, with_backend
from capsella.export.onnx_files import load_onnx, write_int8, write_onnx
from capsella.export.parity import Activations, default_tolerance
from capsella.export.ship import CALIBRATION_IMAGES
from capsella.files import write_json
from capsella.layers import ClusterCapsules
from capsella.models import ImageClassifier, create_model, list_models
from capsella.models.inference import optimize_for_inference
from capsella.routing import Routing
from capsella.training.run import load_splits
from capsella.training.trained import open_network

BACKENDS = {
    "eager": "PyTorch eager",
    "native": "PyTorch, native kernels",
    "packed": "PyTorch, optimised for inference",
    "compile": "torch.compile",
    "onnxruntime": "ONNX Runtime",
    "onnxruntime-int8": "ONNX Runtime, int8",
    "openvino": "OpenVINO",
}
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)


class UnavailableError(Exception):
    """A backend cannot run this network on this machine; the message is the reason."""


@dataclass
class Bench:
    """The measurements of a network, by backend.

    differences: largest difference from eager's activations. unavailable: reason why a backend did not run.
    """

    model: str
    threads: int
    latencies: dict[str, Latency] = field(default_factory=dict)
    throughputs: dict[str, Throughput] = field(default_factory=dict)
    differences: dict[str, float] = field(default_factory=dict)
    unavailable: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the measurements, ready for JSON; latencies in milliseconds."""
        rows = {
            name: {
                "latency_ms": asdict(latency),
                "throughput": self.throughputs[name]._asdict(),
                "largest_difference_from_eager": self.differences[name],
            }
            for name, latency in self.latencies.items()
        }
        return {"model": self.model, "threads": self.threads, "backends": rows, "unavailable": self.unavailable}

    def table(self) -> Table:
        """Return a table for a terminal, fastest first."""
        title = f"{self.model}, {pluralize(self.threads, 'thread')}; one image per call, then the best batch"
        table = Table(title=title)
        table.add_column("backend")
        for heading in ("p50 ms", "p95 ms", "p99 ms", "images/s", "batch", "difference"):
            table.add_column(heading, justify="right")
        for name, latency in sorted(self.latencies.items(), key=lambda item: item[1].p50):
            rate = self.throughputs[name]
            times = ("" if value is None else f"{value:.2f}" for value in (latency.p50, latency.p95, latency.p99))
            difference = f"{self.differences[name]:.1g}"
            table.add_row(BACKENDS[name], *times, f"{rate.images_per_second:.0f}", str(rate.batch_size), difference)
        return table


def bench(
    model: ImageClassifier,
    images: ImageSet,
    *,
    backends: Sequence[str] = tuple(BACKENDS),
    threads: int | None = None,
    calls: int = 200,
    max_seconds: float | None = None,
    batch_sizes: Sequence[int] = BATCH_SIZES,
) -> Bench:
    """Measure `model` on the CPU. A backend is timed only if it agrees with eager on the images that are timed.

    Args:
        model: any registered network.
        images: training images; int8 calibrates on them, and all backends are timed on them.
        backends: names of `BACKENDS`. Those that cannot run or differ from eager are in `unavailable`, with the reason.
        threads: threads of each backend; default: as many as PyTorch has.
        calls: single-image calls of each backend.
        max_seconds: stops the calls of a backend early, as in `latencies` and `best_throughput`.
        batch_sizes: batch sizes to find the best throughput among.

    Raises:
        ArgumentError: no backend or an unknown one, fewer than 100 calls, no images.
    """
    for name in backends:
        if name not in BACKENDS:
            raise unknown_name("backends", name, BACKENDS)
    check_argument(len(backends) > 0 and len(images) > 0, "be at least one", backends=backends, images=len(images))
    model.check_images(images.images)
    model = with_backend(model, "eager")
    with _threads(threads) as used, tempfile.TemporaryDirectory() as folder:
        result = Bench(model.name, used)
        pixels = images.images[torch.arange(max(batch_sizes)) % len(images)].float() / 255  # repeated if too few
        runners = _prepare(model, images, backends, Path(folder), result, pixels)

        def call(run: Activations, size: int) -> Tensor:
            return run(pixels[:size])

        steps = {name: partial(call, run, 1) for name, run in runners.items()}
        result.latencies = latencies(steps, calls, max_seconds)
        for name, run in runners.items():
            result.throughputs[name] = best_throughput(partial(call, run), batch_sizes, max_seconds)
    return result


def bench_networks(
    names: Sequence[str],
    settings: Mapping[str, Any],
    *,
    command: str,
    out: Path | None = None,
    show: Callable[[Bench, str], None] = lambda result, images: None,
) -> dict[str, Any]:
    """Measure each network with `bench`, and return what is written to `out`.

    Args:
        names: run folders and models, as `network_names` returns them; one network is in memory at a time.
        settings: keyword arguments of `bench`, the same for all.
        command: the command line, recorded in the file.
        out: JSON file, written after each network.
        show: called with each result and the description of its images.
    """
    done: dict[str, Any] = {}
    values = {"command": command, "settings": json.loads(json.dumps(settings)), "networks": done}
    for name in names:
        model, images, source = load_with_images(name)
        result = bench(model, images, **settings)
        done[name] = {**result.to_dict(), "images": source, "size": [model.channels, *model.image_size]}
        del model
        torch._dynamo.reset()  # torch.compile keeps parts of the network
        gc.collect()
        values["environment"] = {**environment(), "threads": result.threads}
        show(result, source)
        if out is not None:
            write_json(out, values)
    return values


def network_names(words: Sequence[str]) -> list[str]:
    """Return run folders and model names, each once, in the order given; a word may be a pattern of model names."""
    names: list[str] = []
    for word in words:
        found = [word] if Path(word).is_dir() else list_models(word)
        if not found:
            raise ArgumentError("networks", "be runs or models", word, near_names(word, list_models()))
        names += found
    check_argument(bool(names), "name at least one run or model", networks=names)
    return list(dict.fromkeys(names))


def load_with_images(name: str) -> tuple[ImageClassifier, ImageSet, str]:
    """Load a run with its training images, or create a model with random ones; return a description of these, too."""
    source = "random images"
    if Path(name).is_dir():
        model, run = open_network(Path(name))
        if run is not None:
            images = single_images(load_splits(run).train, "benchmarks")
            return model, images, f"training images of {run.name}"
    else:
        source = "random images, fresh weights"
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = create_model(name)
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (64, model.channels, *model.image_size), dtype=torch.uint8, generator=generator)
    return model, ImageSet(pixels, torch.zeros(64, dtype=torch.long), model.classes), source


def _prepare(
    model: ImageClassifier, images: ImageSet, backends: Sequence[str], folder: Path, result: Bench, pixels: Tensor
) -> dict[str, Activations]:
    """Call every backend that can run for one image and for a batch, and keep those that agree with eager."""
    runners: dict[str, Activations] = {}
    expected = _run_torch(Exportable(model))(pixels)
    for name in backends:
        try:
            run = MAKERS[name](model, images, folder)
            run(pixels[:1])  # torch.compile compiles for one image, and then for any number
            difference = float((run(pixels) - expected).abs().max())
        except (UnavailableError, CapsellaError, ValueError) as error:  # e.g. a kernel for other layers
            result.unavailable[name] = str(error)
            continue
        limit = default_tolerance(model, "int8" if name.endswith("int8") else "float32").difference
        if not difference <= limit:
            result.unavailable[name] = f"differs from eager by {difference:.2g}, more than {limit:g}"
            continue
        result.differences[name] = difference
        runners[name] = run
    return runners


def _run_torch(module: Any) -> Activations:
    def run(images: Tensor) -> Tensor:
        with torch.inference_mode():
            activations: Tensor = module(images)[0]
        return activations

    return run


def _native_kernels(model: ImageClassifier, images: ImageSet, folder: Path) -> Activations:
    if _native.UNAVAILABLE is not None:
        raise UnavailableError(_native.UNAVAILABLE)
    routings = (getattr(module, "routing", None) for module in model.modules())
    has_kernels = any(isinstance(routing, Routing) and "native" in routing.fused for routing in routings)
    if not has_kernels and not any(isinstance(module, ClusterCapsules) for module in model.modules()):
        raise UnavailableError("the network has no routing with native kernels")
    return _run_torch(Exportable(with_backend(model, "native")))


def _optimized(model: ImageClassifier, images: ImageSet, folder: Path) -> Activations:
    return _run_torch(Exportable(optimize_for_inference(with_backend(model, "auto"))))


def _compiled(model: ImageClassifier, images: ImageSet, folder: Path) -> Activations:
    run = _run_torch(torch.compile(Exportable(model)))

    def checked(part: Tensor) -> Tensor:
        try:
            return run(part)
        except torch._dynamo.exc.TorchDynamoException as error:  # usually, there is no compiler on this machine
            raise UnavailableError(f"torch.compile fails: {str(error).strip().splitlines()[0]}") from error

    return checked


def _onnx_file(model: ImageClassifier, folder: Path) -> Path:
    """Write the float32 ONNX file that three backends share, unless it exists; return its path."""
    _check_packages("onnx", "onnxscript")
    path = folder / "float32.onnx"
    if not path.exists():
        write_onnx(model, path)
    return path


def _onnxruntime(model: ImageClassifier, images: ImageSet, folder: Path) -> Activations:
    _check_packages("onnxruntime")
    return load_onnx(_onnx_file(model, folder))


def _onnxruntime_int8(model: ImageClassifier, images: ImageSet, folder: Path) -> Activations:
    _check_packages("onnxruntime")
    path, calibration = folder / "int8.onnx", images.subset(evenly(len(images), CALIBRATION_IMAGES))
    write_int8(_onnx_file(model, folder), path, calibration, {})
    return load_onnx(path)


def _openvino(model: ImageClassifier, images: ImageSet, folder: Path) -> Activations:
    _check_packages("openvino")
    import openvino

    settings = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(str(_onnx_file(model, folder)), "CPU", settings)
    return lambda part: torch.from_numpy(compiled({"images": part.numpy()})["activations"])


def _check_packages(*packages: str) -> None:
    if missing := [package for package in packages if find_spec(package) is None]:
        raise UnavailableError(f"{', '.join(missing)} is not installed")


MAKERS: dict[str, Callable[[ImageClassifier, ImageSet, Path], Activations]] = {
    "eager": lambda model, images, folder: _run_torch(Exportable(model)),
    "native": _native_kernels,
    "packed": _optimized,
    "compile": _compiled,
    "onnxruntime": _onnxruntime,
    "onnxruntime-int8": _onnxruntime_int8,
    "openvino": _openvino,
}


@contextlib.contextmanager
def _threads(number: int | None) -> Iterator[int]:
    """Set PyTorch's threads, whose number the other backends copy, for the length of a block."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(number or before)
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)
