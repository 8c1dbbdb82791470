"""The training loop.

The random numbers of a step depend only on (seed, step), so a resumed run computes what an uninterrupted one does.
"""

import math
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from rich.console import Console
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from capsella.data import LabelledImages, PairData, Splits, batches, epoch_batches, load_data, load_once, warn_of_few
from capsella.errors import pluralize
from capsella.losses import count_errors, total_loss
from capsella.models import ImageClassifier
from capsella.seeds import mixed_seed
from capsella.training import devices
from capsella.training.augment import Augment, mixup
from capsella.training.balance import epoch_rows, log_prior_shift, resolve_balance
from capsella.training.config import ComputeOptions
from capsella.training.logistic_regression import fit_head
from capsella.training.metrics import epoch_line, open_events, progress_bar, write_events, write_metrics
from capsella.training.progress import (
    EpochRow,
    Progress,
    TrainingDivergedError,
    Validation,
    is_better,
    is_finished,
    read_checkpoint,
    restore_checkpoint,
    save_checkpoint,
    selection_metric,
    summary_of,
    validate,
)
from capsella.training.recipe import Recipe
from capsella.training.resolve import resolve_auto
from capsella.training.run import Run, RunFolder, load_run, load_run_splits
from capsella.uncertainty import calibrate_model, fit_ood_detector, save_fitted

if TYPE_CHECKING:
    from lightning_fabric import Fabric

FEWEST, MOST = 2, 50  # timed steps of `time_steps`


def train(
    recipe: Recipe,
    folder: Path,
    *,
    name: str = "unnamed",
    compute: ComputeOptions = ComputeOptions(),
    console: Console | None = None,
    until: int | None = None,
    splits: Splits | None = None,
) -> Run:
    """Train and calibrate a new run in `folder`; do not test it (`capsella.fit` does both).

    Args:
        recipe: what to train.
        folder: the run folder.
        name: name of the run.
        compute: where to train.
        console: where progress is printed; default: the standard output.
        until: pause after this epoch, as if interrupted; `resume` continues with the same results.
        splits: the images of the recipe, if they are loaded already.

    Returns:
        The run with the weights that the recipe keeps, and its splits.

    Raises:
        CapsellaError: `folder` already holds a run, is in use by another training or lies among the images; data is
            missing or broken; or the disk is full.
        TrainingDivergedError: loss or gradient is NaN or infinite; the last good checkpoint is kept.
        ValueError: the images do not fit the network.
    """
    devices.check_devices(compute)
    recipe.data.check_outside(folder)
    files = RunFolder(folder)
    with files.lock(compute):
        files.check_unused()
        recipe, choices = resolve_auto(recipe, compute)
        fabric = devices.launch(recipe, compute)
        files = RunFolder(devices.folder_of_first(fabric, folder))
        trainer = Trainer(recipe, files, name, fabric, console or Console(), splits)
        for choice in (*choices, *trainer.balance_choice):
            trainer.console.print(choice, markup=False, soft_wrap=True)
        if fabric.is_global_zero:
            files.write_config(name, trainer.recipe, compute, trainer.splits.digests())
            if trainer.splits.table is not None:  # limits such as `test_per_class` are applied whenever it is read
                trainer.splits.table.write(files.split)
        trainer.run(until)
        return replace(load_run(files.path), splits=trainer.splits)


def resume(
    folder: Path,
    *,
    compute: ComputeOptions | None = None,
    console: Console | None = None,
    until: int | None = None,
    splits: Splits | None = None,
) -> Run:
    """Continue the training in `folder` after its last complete epoch; a finished one is returned as it is.

    Args:
        folder: the run folder.
        compute: where to continue, e.g. with another number of processes; default: as before.
        console: as for `train`.
        until: as for `train`.
        splits: as for `train`.

    Raises:
        CapsellaError: `folder` has no run or no checkpoint; or as for `train`.
    """
    files = RunFolder(folder)
    name, recipe, _ = files.read_config()
    before = files.read_compute()
    compute = compute or before
    if compute != before:
        devices.check_devices(compute)
    with files.lock(compute):
        if files.is_trained:  # neither images nor backbone need to be there any more
            return load_run(folder)
        state = read_checkpoint(files.checkpoint)  # a damaged one is reported before all images are read
        fabric = devices.launch(recipe, compute)
        images = load_run_splits(files, recipe.data, splits)
        trainer = Trainer(recipe, files, name, fabric, console or Console(), images)
        trainer.progress = restore_checkpoint(state, trainer.model, trainer.optimizer, trainer.average)
        trainer.run(until)
        return replace(load_run(folder), splits=trainer.splits)


class Trainer:
    """One training: its model, optimizer, data and progress, and its steps."""

    def __init__(
        self,
        recipe: Recipe,
        files: RunFolder,
        name: str,
        fabric: "Fabric",
        console: Console,
        splits: Splits | None = None,
    ) -> None:
        self.files, self.name, self.fabric = files, name, fabric
        self._is_first = bool(fabric.is_global_zero)
        self.console = console if self._is_first else Console(quiet=True)
        self.splits = splits = splits or load_data(recipe.data)
        measured = recipe.with_measured(splits.value_range, splits.cut)
        self.recipe, self.balance_choice = resolve_balance(measured, splits.train)
        torch.manual_seed(self.recipe.seed)
        self.model = self.recipe.model.create(splits.image_size, splits.channels, splits.classes)
        self.model.value_range, self.model.cut = splits.value_range, self.recipe.data.cut
        data = self.recipe.data
        self.model.fit = (data.single() if isinstance(data, PairData) else data).fit
        if self.recipe.channels_last:
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = self.recipe.optimizer.create([p for p in self.model.parameters() if p.requires_grad])
        self.augment = Augment(self.recipe.augment, splits.image_size).to(fabric.device)
        self.network, self.wrapped_optimizer = fabric.setup(self.model, self.optimizer)
        ema = self.recipe.optimizer.ema
        self.average = None if ema is None else exponential_average(self.model, ema)
        # The weights that are validated and kept.
        self.evaluated = self.model if self.average is None else cast(ImageClassifier, self.average.module)
        self.progress = Progress()
        self.batch, self.sums = 0, defaultdict[str, float](float)  # of the epoch in progress
        epoch, size = torch.arange(self.recipe.epoch_images or len(splits.train)), self.recipe.batch_size
        self.steps, self.single_steps = (len(epoch_batches(epoch, size, n)) for n in (fabric.world_size, 1))
        self.total_steps = self.recipe.epochs * self.single_steps

    def run(self, until: int | None = None) -> None:
        """Train to the end, or pause after epoch `until`."""
        with devices.raise_on_peer_exit(self.fabric, self.files.path):
            if self._is_first:
                self._begin()
            shown = self.recipe.epochs * self.steps
            writer = open_events(self.files.events, self.progress.step) if self._is_first else None
            bar = progress_bar(self.console, self.name, shown, self.progress.step)
            with nullcontext() if writer is None else closing(writer), bar as advance:
                while not is_finished(self.recipe, self.progress) and (until is None or self.progress.epoch < until):
                    self._train_epoch(advance)
                    row = self._finish_epoch()
                    if writer is not None:
                        write_events(writer, row)
                    line = epoch_line(row, self.recipe.epochs, selection_metric(self.recipe))
                    self.console.print(line, soft_wrap=True)
            if self._is_first and is_finished(self.recipe, self.progress):
                self._finish()
            self.fabric.barrier()

    def _begin(self) -> None:
        """Write a first checkpoint, remove files that a killed process left half written, and report the images."""
        for part in self.files.path.glob(".*.part"):
            part.unlink()
        if self.progress.step == 0:
            self._save_checkpoint()
        splits, out = self.splits, partial(self.console.print, markup=False, soft_wrap=True)
        for note in splits.notes:
            out(note)
        if self.recipe.data.kind in ("folder", "npz") and not self.console.quiet:  # a search must not see test images
            warn_of_few(splits)
        if splits.broken:
            out(f"left out {pluralize(len(splits.broken), 'broken image')}:", *splits.broken, sep="\n  ")

    def _finish(self) -> None:
        """Calibrate, and write summary.json; its presence means that training is complete."""
        splits, device, size = self.splits, self.fabric.device, self.recipe.batch_size
        if not self.recipe.data.is_paired:
            model = ImageClassifier.from_pretrained(self.files.path).to(device)
            calibration = calibrate_model(model, splits.validation, size, log_prior_shift(self.recipe, splits.train))
            detector = fit_ood_detector(model, splits.train, splits.validation, size, self.augment.domain_shift)
            save_fitted(model, calibration, detector, self.files.path)
        self.files.write("summary", summary_of(self.recipe, self.progress, splits.broken, device))

    def _train_epoch(self, advance: Callable[[str, int], None]) -> None:
        started = time.monotonic()
        if self.recipe.optimizer.method == "logistic_regression":
            self._fit_head(advance)
        else:
            self.network.train()
            for rows in self._epoch_batches():
                advance(self._train_step(rows), 1)
        self._add(seconds=time.monotonic() - started)

    def _fit_head(self, advance: Callable[[str, int], None]) -> None:
        """Fit the head of a frozen backbone instead of training an epoch."""
        images = len(self.splits.train)
        fit = fit_head(self.model, self.splits.train, self.recipe.balance, self.recipe.batch_size)
        if self.average is not None:
            self.average.module.load_state_dict(self.model.state_dict())
        self._add(images=images, errors=fit.errors)
        self._add(total=fit.loss * images, classification=fit.loss * images, reconstruction=0.0)
        self.progress.step = self.steps
        advance(f"C {fit.c:g}", self.steps)

    def _epoch_batches(self) -> list[Tensor]:
        """Return the image indices of each batch of this epoch; a batch is for all devices together."""
        generator = torch.Generator().manual_seed(mixed_seed(self.recipe.seed, 1, self.progress.epoch))
        order = epoch_rows(self.recipe, self.splits.train, generator)
        return epoch_batches(order, self.recipe.batch_size, self.fabric.world_size)

    def _train_step(self, batch: Tensor) -> str:
        """Take an optimizer step with this device's part of a batch; return its text for the progress bar."""
        progress, options = self.progress, self.recipe.optimizer
        world, rank = self.fabric.world_size, self.fabric.global_rank
        rows = batch[rank::world]
        torch.manual_seed(mixed_seed(self.recipe.seed, 2, progress.step * world + rank))
        images, labels, parts = next(batches(self.splits.train, len(rows), order=rows, device=self.fabric.device))
        images = self.augment(images)
        # Schedules count the steps of a single device, although several devices may take fewer (see `epoch_batches`).
        position = progress.epoch * self.single_steps + self.batch / self.steps * self.single_steps
        for group in self.optimizer.param_groups:
            group["lr"] = options.learning_rate_at(position, self.total_steps)
        alpha = self.recipe.augment.mixup
        images, mixed = mixup(images, labels, alpha) if alpha else (images, None)
        output = self.network(images, labels)
        losses = total_loss(
            output,
            images,
            labels,
            self.recipe.loss,
            parts=parts,
            spread=self.recipe.loss.spread_at(position, self.total_steps),
            mixup=mixed,
        )
        self.wrapped_optimizer.zero_grad()
        # DDP averages gradients over devices, but some have one image more of the last batch: weight by images.
        self.fabric.backward(losses.total * (len(rows) * world / len(batch)))
        norm = torch.nn.utils.get_total_norm(p.grad for p in self.model.parameters() if p.grad is not None)
        self._check_finite("loss", float(losses.total.detach()), progress.step + 1)
        self._check_finite("gradient norm", float(norm), progress.step + 1)
        if options.gradient_clip is not None:
            torch.nn.utils.clip_grads_with_norm_(self.model.parameters(), options.gradient_clip, norm)
        self.wrapped_optimizer.step()
        if self.average is not None:
            self.average.update_parameters(self.model)
        self._add(images=len(labels), errors=count_errors(output.activations, labels))
        self._add(**{name: float(loss.detach()) * len(labels) for name, loss in losses._asdict().items()})
        self.batch, progress.step = self.batch + 1, progress.step + 1
        return f"loss {float(losses.total.detach()):.4f}"

    def _add(self, **amounts: float) -> None:
        for name, amount in amounts.items():
            self.sums[name] += amount

    def _check_finite(self, what: str, value: float, step: int) -> None:
        """Stop before a bad step is taken, so that no weight ever becomes NaN."""
        if not math.isfinite(value):
            rate = self.optimizer.param_groups[0]["lr"]
            raise TrainingDivergedError(
                f"the {what} is {value} at epoch {self.progress.epoch + 1}, step {step} (learning rate {rate:.3g})",
                f"the last checkpoint is {self.files.checkpoint}; a smaller learning rate or --gradient-clip may help",
            )

    def _finish_epoch(self) -> EpochRow:
        """Validate, keep the weights if they are better, write metrics and checkpoint."""
        progress, sums = self.progress, devices.sum_over_devices(self.sums, self.fabric)
        self.evaluated.eval()
        validation = self._validate(self.splits.validation)
        self._check_finite("validation loss", validation.loss, progress.step)
        progress.epoch += 1
        images = sums["images"]
        own: EpochRow = {
            "epoch": progress.epoch,
            "step": progress.step,
            "images_seen": int(sum(row["train_images"] for row in progress.history) + images),
            "train_images": int(images),
            "learning_rate": self.optimizer.param_groups[0]["lr"],
            "train_loss": sums["total"] / images,
            "train_classification": sums["classification"] / images,
            "train_reconstruction": sums["reconstruction"] / images,
            "train_error": 100 * sums["errors"] / images,
            **{f"validation_{name}": value for name, value in validation._asdict().items()},
            "images_per_second": images / sums["seconds"],
            "seconds": sums["seconds"],
        }
        if self.recipe.stop_at_error is not None and self.recipe.stop_on == "test":
            own["test_error"] = self._validate(self.splits.test).error
        row = self.fabric.broadcast(own)  # batch norms differ between processes, but all must stop together
        progress.history.append(row)
        self.batch = 0
        self.sums.clear()
        if is_better(self.recipe, row, progress.best):
            progress.best = row
            if self._is_first:
                self.evaluated.save_pretrained(self.files.path)
        if self._is_first:
            write_metrics(self.files.metrics, progress.history)
        self._save_checkpoint()
        return row

    def _validate(self, images: LabelledImages) -> Validation:
        return validate(self.evaluated, images, self.recipe.loss, self.recipe.batch_size, self.fabric)

    def _save_checkpoint(self) -> None:
        if self._is_first:
            save_checkpoint(self.files.checkpoint, self.model, self.optimizer, self.progress, self.average)


def exponential_average(model: nn.Module, decay: float) -> AveragedModel:
    """Return an exponential moving average of a model, in evaluation mode; call `update_parameters` after each step.

    The first update copies the weights. Then average ← d · average + (1 − d) · weights with
    d = min(decay, (1 + n)/(10 + n)) after n updates, so that early weights are soon forgotten (as in TensorFlow's
    `ExponentialMovingAverage` with `num_updates`). Running statistics of batch norms are averaged alike.
    """

    def update(
        averages: list[Tensor] | tuple[Tensor, ...], weights: list[Tensor] | tuple[Tensor, ...], n: Tensor | int
    ) -> None:
        """Update all tensors of one type at once, so that the number of updates is copied from a GPU once."""
        if not averages[0].is_floating_point():  # counts of batches
            torch._foreach_copy_(averages, weights)
            return
        updates = int(n)
        torch._foreach_lerp_(averages, weights, 1 - min(decay, (1 + updates) / (10 + updates)))

    average = AveragedModel(model, multi_avg_fn=update, use_buffers=True).eval()
    average.requires_grad_(False)
    return average


class StepTime(NamedTuple):
    """Seconds per optimizer step, and per image that is validated or tested."""

    step: float
    image: float


def time_steps(
    recipe: Recipe, compute: ComputeOptions = ComputeOptions(), seconds: float = 3.0, splits: Splits | None = None
) -> StepTime:
    """Measure a few steps and the validation of a batch, in a training that is then discarded; write nothing.

    Args:
        recipe: what would be trained.
        compute: where to train.
        seconds: time for the timed steps, of which there are at least two.
        splits: the images, if they are loaded already.

    Raises:
        CapsellaError: images are missing or broken.
    """
    recipe, _ = resolve_auto(recipe, compute)
    files, fabric = RunFolder(Path("untrained")), devices.launch(recipe, compute)
    return _Timer(recipe, files, "timing", fabric, Console(quiet=True), splits or load_once(recipe.data)).time(seconds)


class _Timer(Trainer):
    def time(self, seconds: float) -> StepTime:
        self.network.train()
        times: list[float] = []
        for rows in self._epoch_batches()[: 1 + MOST]:
            began = time.perf_counter()
            self._train_step(rows)
            times.append(time.perf_counter() - began)
            if len(times) > FEWEST and sum(times[1:]) > seconds:
                break
        self.evaluated.eval()
        images = self.splits.validation
        few = images.subset(torch.arange(min(len(images), self.recipe.batch_size)))
        for _ in range(2):  # the first call is not timed
            began = time.perf_counter()
            self._validate(few)
        validated = time.perf_counter() - began
        return StepTime(median(times[1:] or times), validated / len(few))
