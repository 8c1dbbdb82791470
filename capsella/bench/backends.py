"""One network in every backend at hand: latency of a single image, and throughput."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from capsella import _native
from capsella.bench.latency import Latency, Throughput, best_throughput, latencies
from capsella.data.batching import evenly
from capsella.data.images import ImageSet
from capsella.errors import ArgumentError, CapsellaError, unknown_name
from capsella.export.graph import Exportable, with_backend
from capsella.export.onnx_files import load_onnx, write_onnx
from capsella.export.parity import Activations, usual_tolerance
from capsella.export.reduced import write_int8
from capsella.export.ship import CALIBRATION_IMAGES
from capsella.layers import ClusterCapsules
from capsella.models import ImageClassifier
from capsella.models.inference import optimize_for_inference
from capsella.models.scoring import predict_with_scores, without_unused_decoder
from capsella.routing import Routing

BACKENDS = {
    "eager": "PyTorch eager",
    "native": "PyTorch, native kernels",
    "packed": "PyTorch, packed weights",
    "predict": "PyTorch, as capsella predict",
    "compile": "torch.compile",
    "onnxruntime": "ONNX Runtime",
    "onnxruntime-int8": "ONNX Runtime, int8",
    "openvino": "OpenVINO",
}
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)


@dataclass
class Bench:
    """What was measured. unavailable: backend → why it did not run. differences: from eager's activations."""

    model: str
    threads: int
    latencies: dict[str, Latency] = field(default_factory=dict)
    throughputs: dict[str, Throughput] = field(default_factory=dict)
    differences: dict[str, float] = field(default_factory=dict)
    unavailable: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; times in milliseconds."""
        rows = {
            name: {
                "latency_ms": asdict(latency),
                "throughput": asdict(self.throughputs[name]),
                "largest_difference_from_eager": self.differences[name],
            }
            for name, latency in self.latencies.items()
        }
        return {"model": self.model, "threads": self.threads, "backends": rows, "unavailable": self.unavailable}

    def table(self) -> Table:
        """The same for a terminal, fastest first."""
        s = "" if self.threads == 1 else "s"
        table = Table(title=f"{self.model}, {self.threads} thread{s}; one image a call, then the best batch")
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
    most_seconds: float | None = None,
    batch_sizes: Sequence[int] = BATCH_SIZES,
) -> Bench:
    """Measure `model` on the CPU; a backend counts only if it agrees with eager on the images that it is timed with.

    Args:
        model: any registered model.
        images: training images: int8 calibrates on them, and all backends are timed on them.
        backends: names of `BACKENDS`; those that cannot run here, or disagree with eager, are listed with the reason.
        threads: for each backend; default: as many as PyTorch has.
        calls: single-image calls a backend.
        most_seconds: stops the calls of a backend early, as `latencies` and `best_throughput` do.
        batch_sizes: to look for the best throughput among.

    Raises:
        ValueError: an unknown backend, no backend, fewer than 100 calls, fewer than one thread, no images, seconds
            that are not positive.
    """
    _check(model, images, backends, threads)
    model = with_backend(model, "eager")
    with _threads(threads) as used, tempfile.TemporaryDirectory() as folder:
        result = Bench(model.name, used)
        pixels = images.images[torch.arange(max(batch_sizes)) % len(images)].float() / 255  # again where too few
        runners = _prepare(model, images, backends, Path(folder), result, pixels)
        steps = {name: _call(run, pixels, 1) for name, run in runners.items()}
        result.latencies = latencies(steps, calls, most_seconds=most_seconds)
        for name, run in runners.items():
            result.throughputs[name] = best_throughput(
                lambda n, run=run: _call(run, pixels, n)(),  # type: ignore[misc]
                batch_sizes,
                most_seconds=most_seconds,
            )
    return result


def _check(model: ImageClassifier, images: ImageSet, backends: Sequence[str], threads: int | None) -> None:
    for name in backends:
        if name not in BACKENDS:
            raise unknown_name("backends", name, BACKENDS)
    if not backends:
        raise ArgumentError("backends", "name at least one", None)
    if threads is not None and threads < 1:
        raise ArgumentError("threads", "be at least 1", threads)
    if len(images) == 0:
        raise ArgumentError("images", "hold at least one", None)
    model.check_images(images.images)


def _call(run: Activations, pixels: Tensor, size: int) -> Callable[[], Tensor]:
    part = pixels[:size].contiguous()
    return lambda: run(part)


def _prepare(
    model: ImageClassifier, images: ImageSet, backends: Sequence[str], folder: Path, result: Bench, pixels: Tensor
) -> dict[str, Activations]:
    """Every backend that can run, called once for one image and once for a batch, and compared with eager."""
    runners: dict[str, Activations] = {}
    expected = _run_torch(Exportable(model))(pixels)
    for name in backends:
        try:
            run = MAKERS[name](model, images, folder)
            run(pixels[:1])  # torch.compile compiles for one image, and then for any number
            difference = float((run(pixels) - expected).abs().max())
        except (UnavailableError, CapsellaError, ValueError) as error:  # random couplings, a kernel for other layers, …
            result.unavailable[name] = str(error)
            continue
        most = usual_tolerance(model, "int8" if name.endswith("int8") else "float32").difference
        if not difference <= most:
            result.unavailable[name] = f"differs from eager by {difference:.2g}, more than {most:g}"
            continue
        result.differences[name] = difference
        runners[name] = run
    return runners


class UnavailableError(Exception):
    """A backend cannot run here; says why."""


def _run_torch(module: Any) -> Activations:
    def run(images: Tensor) -> Tensor:
        with torch.inference_mode():
            activations: Tensor = module(images)[0]
        return activations

    return run


def _native_kernels(model: ImageClassifier, images: ImageSet, folder: Path) -> Activations:
    if _native.UNAVAILABLE is not None:
        raise UnavailableError(_native.UNAVAILABLE)
    if not any(isinstance(module, ClusterCapsules) for module in model.modules()):
        layers = (getattr(module, "routing", None) for module in model.modules())
        routings = [routing for routing in layers if isinstance(routing, Routing)]
        if not routings:
            raise UnavailableError("the network has no routing")
        if not any("native" in routing.fused for routing in routings):
            raise UnavailableError(f"{routings[0].name} routing has no native kernels")
    return _run_torch(Exportable(with_backend(model, "native")))


def _packed(model: ImageClassifier, images: ImageSet, folder: Path) -> Activations:
    return _run_torch(Exportable(optimize_for_inference(with_backend(model, "auto"))))


def _predicting(model: ImageClassifier, images: ImageSet, folder: Path) -> Activations:
    """Predict with OOD detection, which takes a second pass, or the decoder."""
    detector = model.ood_detector
    if detector is None:
        raise UnavailableError("the network has no OOD detector, and packed weights are the rest")
    quick = optimize_for_inference(without_unused_decoder(with_backend(model, "auto"), detector))

    def run(images: Tensor) -> Tensor:
        with torch.inference_mode():
            return predict_with_scores(quick, images, detector)[0].activations

    return run


def _compiled(model: ImageClassifier, images: ImageSet, folder: Path) -> Activations:
    run = _run_torch(torch.compile(Exportable(model)))

    def checked(part: Tensor) -> Tensor:
        try:
            return run(part)
        except torch._dynamo.exc.TorchDynamoException as error:  # no compiler on this machine, most of all
            raise UnavailableError(f"torch.compile fails: {str(error).strip().splitlines()[0]}") from error

    return checked


def _onnx_file(model: ImageClassifier, folder: Path) -> Path:
    """The float32 file, which three backends share."""
    _require("onnx", "onnxscript")
    path = folder / "float32.onnx"
    if not path.exists():
        write_onnx(model, path)
    return path


def _onnxruntime(model: ImageClassifier, images: ImageSet, folder: Path) -> Activations:
    _require("onnxruntime")
    return load_onnx(_onnx_file(model, folder))


def _onnxruntime_int8(model: ImageClassifier, images: ImageSet, folder: Path) -> Activations:
    _require("onnxruntime")
    path, calibration = folder / "int8.onnx", images.subset(evenly(len(images), CALIBRATION_IMAGES))
    write_int8(_onnx_file(model, folder), path, calibration, {})
    return load_onnx(path)


def _openvino(model: ImageClassifier, images: ImageSet, folder: Path) -> Activations:
    _require("openvino")
    import openvino

    settings = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(str(_onnx_file(model, folder)), "CPU", settings)
    return lambda part: torch.from_numpy(compiled({"images": part.numpy()})["activations"])


def _require(*packages: str) -> None:
    if missing := [package for package in packages if find_spec(package) is None]:
        raise UnavailableError(f"{', '.join(missing)} is not installed")


MAKERS: dict[str, Callable[[ImageClassifier, ImageSet, Path], Activations]] = {
    "eager": lambda model, images, folder: _run_torch(Exportable(model)),
    "native": _native_kernels,
    "packed": _packed,
    "predict": _predicting,
    "compile": _compiled,
    "onnxruntime": _onnxruntime,
    "onnxruntime-int8": _onnxruntime_int8,
    "openvino": _openvino,
}


@contextlib.contextmanager
def _threads(number: int | None) -> Iterator[int]:
    """PyTorch, and with it all that asks it, on this many threads."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(number or before)
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)
