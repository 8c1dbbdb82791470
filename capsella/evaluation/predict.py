"""Classify image files: as an iterator, into a table on this machine, or into Parquet on a Ray cluster."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from capsella import ray_cluster
from capsella.data.cell_crop import MAX_SAMPLES, measured_cut
from capsella.data.decoding import Chunk, decode_chunk, decode_files, rgb_images
from capsella.data.folder import skipped_notes, spread, walk
from capsella.data.image_file import ENDINGS
from capsella.errors import CapsellaError, check_argument, pluralize
from capsella.evaluation.tables import (
    Prediction,
    PredictionSummary,
    PredictionTable,
    PredictOptions,
    UnreadableFile,
    open_table,
)
from capsella.image_options import CellCut
from capsella.losses import top_classes
from capsella.models import ImageClassifier
from capsella.models.inference import inference, optimize_for_inference, predict_with_scores, without_unused_decoder
from capsella.progress import tracked
from capsella.uncertainty import OODDetector

LIST = ".txt"  # the ending of a file with a path per line
FEWEST_CELLS = 20  # with fewer, the median radius depends on the mix of classes


def find_images(paths: Iterable[Path]) -> list[Path]:
    """Return the image files that `paths` name: files as given, folders in sorted order, each file once.

    A file that ends in .txt lists one path per line, relative to the working folder. In folders, files are chosen by
    their ending; hidden files and folders are skipped.
    """
    files: dict[Path, None] = {}
    for path in map(Path, paths):
        if not path.exists():
            raise CapsellaError(f"{path}: there is no such file or folder")
        named = list(_named_by(path))
        if not named:
            skipped = "; ".join([f"the folder contains no image ({', '.join(ENDINGS)})", *passed_over([path])])
            raise CapsellaError(f"{path}: {skipped if path.is_dir() else 'the list is empty'}")
        files |= dict.fromkeys(named)
    return list(files)


def passed_over(paths: Iterable[Path]) -> tuple[str, ...]:
    """Return a note, if there is one, on the files in the folders among `paths` that are not read."""
    skipped = list[str]()
    for path in map(Path, paths):
        if path.is_dir():
            walk(path, skipped)
    return skipped_notes(skipped)


def _named_by(path: Path) -> Iterable[Path]:
    if path.is_dir():
        return walk(path, [])
    if path.suffix.lower() != LIST:
        return [path]
    text = path.read_bytes()
    wide = text[:2] in (b"\xff\xfe", b"\xfe\xff")  # UTF-16, as PowerShell writes it
    lines = text.decode("utf-16" if wide else "utf-8-sig", "surrogateescape").splitlines()
    return [Path(line) for line in lines if line]


def set_scale(model: ImageClassifier, paths: Iterable[Path], radius: float | None = None) -> str | None:
    """Set the scale at which a model crops cells to that of new images; return a note if it is unknown."""
    if model.cut is None:
        check_argument(radius is None, "be None for a network that crops no cells", cell_radius=radius)
        return None
    model.cut, note = scaled(model.cut, paths, radius)
    return note


def scaled(cut: CellCut, paths: Iterable[Path], radius: float | None = None) -> tuple[CellCut, str | None]:
    """Return cropping options for the magnification and stain of new images, and a note if they are unknown.

    Args:
        cut: the cropping options of a model.
        paths: files and folders, all from one microscope.
        radius: radius of a typical nucleus, in pixels of the files; None measures it, as the stain, on 100 images. Of
            too few images, the stain is taken to be that of the training images.
    """
    files = find_images(paths) if radius is None or cut.matched else []
    measured, number = measured_cut(rgb_images(files[row] for row in spread(len(files), MAX_SAMPLES)), cut.matched)
    if number >= FEWEST_CELLS:
        return (measured if radius is None else replace(measured, radius=radius)), None
    if radius is not None:
        return replace(cut, radius=radius), None
    scale = "measured for itself" if cut.radius is None else f"that of the training images, {cut.radius:.0f} pixels"
    cells = pluralize(number, "stained cell")
    return (
        cut,
        f"{cells}: too few to measure magnification and stain. Each nucleus's radius is {scale}; --cell-radius sets it",
    )


def predict_files(
    model: ImageClassifier,
    paths: Iterable[Path],
    options: PredictOptions = PredictOptions(workers=0),
) -> Iterator[Prediction]:
    """Classify image files, resized and converted to 8 bits as in training, in the order of `find_images`.

    Args:
        model: any registered model.
        paths: files and folders.
        options: options of the predictions; coverage and unsure_below are not used.

    Raises:
        CapsellaError: a file cannot be read; `predict_table` gives it a row with the reason.
    """
    for outcomes in _predict_batches(model, list(map(str, find_images(paths))), options):
        for outcome in outcomes:
            if isinstance(outcome, UnreadableFile):
                raise CapsellaError(f"{outcome.file}: {outcome.reason}")
            yield outcome


def predict_table(
    model: ImageClassifier,
    paths: Iterable[Path],
    out: Path | None,
    options: PredictOptions = PredictOptions(),
    *,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = False,
) -> PredictionSummary:
    """Classify image files into a table with one row per file; files that cannot be read have a row with the reason.

    However the process ends, a call with `resume` adds the files that the table lacks.

    Args:
        model: any registered model.
        paths: files and folders, as for `find_images`.
        out: a .csv or .jsonl file or a .parquet folder; None writes CSV to standard output.
        options: options of the predictions.
        resume, overwrite: add to a table of the same model and options, or replace it.
        progress: show a progress bar on standard error.
    """
    check_argument(not (resume and overwrite), "not come together", resume=resume, overwrite=overwrite)
    files = find_images(paths)
    with open_table(out, PredictionTable(model, options), resume=resume, overwrite=overwrite) as table:
        missing = [file for file in map(str, files) if file not in table.done]
        batches = _predict_batches(model, missing, options)
        for outcomes in tracked(batches, "predicting", -(-len(missing) // options.batch_size), is_shown=progress):
            table.write(outcomes)
    summary = table.summary
    if summary.unreadable == summary.rows:
        raise CapsellaError(f"none of the {summary.rows} images could be read, for example: {summary.first_error}")
    return summary


def _predict_batches(
    model: ImageClassifier, files: Sequence[str], options: PredictOptions
) -> Iterator[list[Prediction | UnreadableFile]]:
    """Yield the outcomes of `batch_size` files at a time, in order."""
    number, detector = len(model.classes), options.active_detector(model)
    check_argument(1 <= options.classes <= number, f"be from 1 to the model's {number}", classes=options.classes)
    quick = optimize_for_inference(without_unused_decoder(model, detector))
    for chunk in decode_files(files, model.preprocessing, chunk=options.batch_size, workers=options.threads):
        yield outcomes_of(quick, chunk, options, _outputs(quick, chunk.pixels, detector))


def outcomes_of(
    model: ImageClassifier, chunk: Chunk, options: PredictOptions, rows: Iterator[tuple[Tensor, Tensor | None]]
) -> list[Prediction | UnreadableFile]:
    """Return the outcome of each file of a chunk; `rows` has the activations and scores of those that were decoded."""
    outcomes: list[Prediction | UnreadableFile] = []
    for file, loss in zip(map(Path, chunk.files), chunk.results, strict=True):
        if isinstance(loss, str):
            outcomes.append(UnreadableFile(file, loss))
            continue
        row, scores = next(rows)
        try:
            loss.check(model.value_range, options.most_outside)
        except CapsellaError as error:
            outcomes.append(UnreadableFile(file, str(error)))
            continue
        if not row.isfinite().all():
            raise CapsellaError(f"{file}: the activations are NaN or infinite; the weights are broken, train again")
        named = " + ".join(model.classes[k] for k in top_classes(row, options.classes).tolist())
        outcomes.append(Prediction(file, named, row, scores, loss))
    return outcomes


def _outputs(
    model: ImageClassifier, pixels: np.ndarray, detector: OODDetector | None
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Return the activations and normalised scores of each image."""
    if not len(pixels):
        return iter(())
    with inference(model) as device:
        images = torch.from_numpy(pixels).to(device).float() / 255
        if detector is None:
            return zip(model(images).activations.float().cpu().clone(), repeat(None))
        output, scores = predict_with_scores(model, images, detector)
        return zip(output.activations.float().cpu().clone(), scores.float().cpu().clone(), strict=True)


# On a Ray cluster


def predict_on_cluster(
    load: Callable[[], ImageClassifier],
    paths: Sequence[str],
    out: str,
    options: PredictOptions = PredictOptions(),
    *,
    resume: bool = False,
) -> PredictionSummary:
    """Classify images on the Ray cluster of the session, into Parquet files in a new folder, with one row per file.

    Ray Data lists and reads the files, writes the tables, and retries the batches of killed workers.

    Args:
        load: returns the model, here and in every worker: a function of a module, or a `partial` of one.
        paths: files and folders, or URLs of them, as s3://BUCKET/FOLDER.
        out: a folder or its URL, with no table in it unless resumed.
        options: options of the predictions; `workers` is not used.
        resume: skip files that the folder has rows for.
    """
    if (place := ray_cluster.current_cluster()) is None:
        raise CapsellaError("predict: join a cluster first, with capsella.ray_cluster.ray_session")
    table = PredictionTable(load(), options)
    needs: dict[str, float] = {"num_cpus": place.cpus, "num_gpus": 0}
    job = _ClusterJob(load, options, table.model, table.names, needs, ray_cluster.WorkerEnvironment.here(needs))
    try:
        if not place.is_outside:
            return job.run(paths, out, resume)
        import ray  # Ray Data runs inside the cluster only

        summary: PredictionSummary = ray.get(ray.remote(num_cpus=0)(_ClusterJob.run).remote(job, paths, out, resume))
        return summary
    except ray_cluster.ray_errors() as error:
        raise ray_cluster.worker_error("predict", error) from error


@dataclass(frozen=True)
class _ClusterJob:
    """The inputs of every worker on a cluster. model, names: model digest and column names of the table."""

    load: Callable[[], ImageClassifier]
    options: PredictOptions
    model: str
    names: tuple[str, ...]
    needs: dict[str, float]
    environment: ray_cluster.WorkerEnvironment

    def run(self, paths: Sequence[str], out: str, resume: bool) -> PredictionSummary:
        """Read, predict and write with Ray Data, and count the rows."""
        done = set()
        for row in _rows(out, "file", "model"):
            if not resume:
                raise CapsellaError(f"{out} has a table: --resume adds the files it lacks; else choose another --out")
            check_argument(
                row["model"] == self.model, f"be of the same model and options ({self.model})", out=row["model"]
            )
            done.add(row["file"])
        import ray.data

        logging.getLogger("ray.data").setLevel(logging.ERROR)
        files = ray.data.read_binary_files(list(paths), include_paths=True, file_extensions=[e[1:] for e in ENDINGS])
        if done:
            files = files.filter(lambda row: row["path"] not in done)
        retries = {"max_task_retries": ray_cluster.RETRIES}
        rows = files.map_batches(
            _ClusterPredictor,
            fn_constructor_args=(self,),
            batch_size=self.options.batch_size,
            concurrency=(1, max(1, ray_cluster.capacity(self.needs))),
            ray_remote_args_fn=lambda: retries,
            **self.needs,
        )
        rows.write_parquet(out, mode="append")
        summary = PredictionSummary()
        for row in _rows(out, *(name for name in ("error", "unsure", "in_distribution") if name in self.names)):
            summary.add(row)
        return summary


def _rows(out: str, *columns: str) -> Iterator[dict[str, Any]]:
    """Yield columns of the Parquet files in a folder or its URL. Ray Data would start 32 processes to count them."""
    from pyarrow.dataset import dataset
    from pyarrow.fs import FileSelector, FileSystem

    system, path = FileSystem.from_uri(out if "://" in out else str(Path(out).absolute()))
    files = system.get_file_info(FileSelector(path, allow_not_found=True, recursive=True))
    if tables := [file.path for file in files if file.extension == "parquet"]:
        for batch in dataset(tables, filesystem=system).to_batches(columns=list(columns)):
            yield from batch.to_pylist()


class _ClusterPredictor:
    """Predicts batches of files for Ray Data: columns `path` and `bytes` become the columns of the table."""

    def __init__(self, job: _ClusterJob) -> None:
        job.environment.apply()
        model, self.options = job.load(), job.options
        self.table = PredictionTable(model, self.options)
        if self.table.model != job.model:
            raise CapsellaError("predict: a worker has loaded another model than the caller")
        self.model = optimize_for_inference(without_unused_decoder(model, self.table.detector))

    def __call__(self, batch: dict[str, np.ndarray]) -> Any:
        """Predict one batch."""
        model = self.model
        chunk = decode_chunk(model.preprocessing, batch["path"].tolist(), batch["bytes"].tolist())
        outcomes = outcomes_of(model, chunk, self.options, _outputs(model, chunk.pixels, self.table.detector))
        return self.table.to_arrow(map(self.table.record, outcomes))
