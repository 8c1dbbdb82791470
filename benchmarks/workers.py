"""How many images a second does `capsella predict --on ray` classify with more workers, and what limits it?

`python -m benchmarks.workers RUN --out results/cluster/workers.json` measures 1 and 2 workers on this machine, and what
each step costs: the names, the start of a worker, handing out a part, an image. From these it simulates more of them.
Storage and network are not simulated: the JSON says how many MB a second they would have to bring.
"""

import heapq
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import psutil
import tyro
from PIL import Image

from capsella import ray_cluster
from capsella.environment import environment
from capsella.evaluation.prediction.certainty import Certainty
from capsella.evaluation.shards.job import SIZE, predict_shards
from capsella.evaluation.shards.parts import parts_of, write_names
from capsella.evaluation.shards.worker import Work, Worker
from capsella.files import write_json
from capsella.models import ImageClassifier
from capsella.training import load_run

WORKERS = (1, 2, 8, 32, 128, 512, 1024)
PARTS = 60
"""That cost nothing, to measure how fast they are handed out."""


@dataclass(frozen=True)
class Study:
    """Measure and simulate."""

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of a run."""
    out: Path
    """JSON."""
    images: int = 4000
    """PNG files that are generated, of the network's size."""
    part: int = 200
    """Images a part, where it is measured."""
    names: int = 1_000_000
    """Of the list whose speed is measured."""
    simulated: int = 10_000_000
    """Images, where it is simulated."""


@dataclass(frozen=True)
class Costs:
    """Seconds. name: to list one. start: until a worker has its network. dispatch: to hand out a part, one after
    another. part: of a worker beside its images. image: of a worker.
    """

    name: float
    start: float
    dispatch: float
    part: float
    image: float


def simulate(costs: Costs, workers: int, images: int, size: int) -> dict[str, Any]:
    """Images a second of so many workers from the call to its end, and the share of the time that each step takes."""
    parts = -(-images // size)
    listed = images * costs.name
    free = [costs.start] * min(workers, parts)
    end = 0.0
    for number in range(parts):
        began = max(heapq.heappop(free), number * costs.dispatch)
        finished = began + costs.part + size * costs.image
        heapq.heappush(free, finished)
        end = max(end, finished)
    whole = listed + end
    shares = {
        "names": listed / whole,
        "start": costs.start / whole,
        "images": parts * (costs.part + size * costs.image) / workers / whole,
    }
    shares["waiting"] = 1 - sum(shares.values())  # for a part: the last ones are not shared, or none is handed out
    return {
        "workers": workers,
        "images_per_second": images / whole,
        "limit": max(shares, key=lambda name: shares[name]),
        "shares": shares,
    }


def main(study: Study) -> None:
    """Measure, simulate, write."""
    load = partial(_load, study.run)
    model = load()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size = _draw(model, folder / "images", study.images)
        costs = _costs(study, load, model, folder)
        measured = [_measured(study, load, folder, workers) for workers in (1, 2)]
    simulated = [
        {**simulate(costs, workers, study.simulated, part), "part": part}
        for part in (SIZE, 1000)
        for workers in WORKERS
    ]
    for one in simulated:
        one["megabytes_per_second"] = one["images_per_second"] * size / 1e6
    write_json(
        study.out,
        {
            "network": type(model).__name__,
            "parameters": sum(weight.numel() for weight in model.parameters()),
            "image": [model.channels, *model.image_size],
            "bytes_of_an_image": size,
            "costs_in_seconds": costs.__dict__,
            "measured": measured,
            "simulated_images": study.simulated,
            "simulated": simulated,
            "environment": environment(),
        },
    )


def _load(run: Path) -> ImageClassifier:
    return load_run(run).model


def _draw(model: ImageClassifier, folder: Path, images: int) -> float:
    """Images of smooth noise; returns the bytes of one."""
    random, shape = np.random.default_rng(0), (*model.image_size, 3)
    for number in range(images):
        path = folder / f"{number // 1000}" / f"{number:06}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(random.integers(0, 255, (5, 5, 3), dtype=np.uint8))
        coarse.resize(shape[1::-1]).convert("L" if model.channels == 1 else "RGB").save(path)
    return sum(path.stat().st_size for path in folder.glob("*/*")) / images


def _costs(study: Study, load: Callable[[], ImageClassifier], model: ImageClassifier, folder: Path) -> Costs:
    """In seconds of a processor, which other programs on this machine do not lengthen; the start and dispatch aside."""
    (folder / "list.txt").write_text("".join(f"{folder}/images/{k:09}.png\n" for k in range(study.names)))
    began = time.process_time()
    write_names([str(folder / "list.txt")], folder / "long.parquet", SIZE)
    name = (time.process_time() - began) / study.names
    write_names([str(folder / "images")], folder / "names.parquet", study.part)
    certainty = Certainty(model.confidence, novelty=model.novelty)
    desk = ray_cluster.Desk.here({"num_cpus": 1, "num_gpus": 0})
    worker = Worker(Work(desk, load, str(folder / "alone"), 64, 1, certainty))
    few, many = (_seconds_of(worker, folder / f"{size}.parquet", folder, size) for size in (64, 64 * 20))
    image = (many - few) / (64 * 19)
    start, dispatch = _of_ray()
    return Costs(name, start, dispatch, max(0.0, few - 64 * image), image)


def _seconds_of(worker: Worker, names: Path, folder: Path, size: int) -> float:
    """Of the processor, for one part of so many images, the second time."""
    write_names([str(folder / "images")], names, size)
    part = parts_of([str(names)])[0]
    columns = {field: np.array([value]) for field, value in part.__dict__.items()}
    worker(columns)
    began = time.process_time()
    worker(columns)
    return time.process_time() - began


class _Idle:
    def __call__(self, columns: dict[str, Any]) -> dict[str, Any]:
        import capsella.evaluation.shards.worker  # noqa: F401  what a worker imports

        return columns


def _of_ray() -> tuple[float, float]:
    """Seconds until the first of two workers has imported what it needs, and seconds a part that costs nothing."""
    import ray

    with ray_cluster.joined(ray_cluster.Place(on="ray")):
        pool = ray.data.ActorPoolStrategy(min_size=2, max_size=2)
        times = []
        began = time.monotonic()
        parts = ray.data.from_items([{"number": number} for number in range(PARTS)], override_num_blocks=PARTS)
        ray.data.DataContext.get_current().enable_progress_bars = False
        for _ in parts.map_batches(_Idle, batch_size=1, compute=pool).iter_rows():
            times.append(time.monotonic() - began)
    return times[0], (times[-1] - times[0]) / (len(times) - 1)


def _measured(study: Study, load: Callable[[], ImageClassifier], folder: Path, workers: int) -> dict[str, Any]:
    """Images a second between the first part that is written and the last."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": workers})
    os.environ["RAY_ADDRESS"] = made.address
    busy, out, began = psutil.getloadavg()[0], folder / f"with-{workers}", time.monotonic()
    with ray_cluster.joined(ray_cluster.Place(on="ray")):
        predict_shards(load, [str(folder / "images")], str(out), size=study.part)
    whole = time.monotonic() - began
    made.shutdown()
    del os.environ["RAY_ADDRESS"]
    written = sorted(path.stat().st_mtime for path in out.glob("part-*"))
    steady = (len(written) - workers) * study.part / (written[-1] - written[workers - 1])
    return {"workers": workers, "images_per_second": steady, "seconds_in_all": whole, "load_before": busy}


if __name__ == "__main__":
    main(tyro.cli(Study))
