"""The training loop.

Every step's randomness follows from (seed, step), so a resumed run computes what an unbroken one does.
"""

import math
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from rich.console import Console
from torch import Tensor

from capsella.data import LabelledImages, Splits, batches, epoch_batches, load_data
from capsella.losses import count_errors, total_loss
from capsella.models import ImageClassifier
from capsella.seeds import mixed_seed
from capsella.training import devices
from capsella.training.augment import Augment
from capsella.training.average import average_of
from capsella.training.balance import class_weights, order_of, settle_balance
from capsella.training.calibrate import calibrate_folder
from capsella.training.checkpoint import EpochRow, Progress, load_checkpoint, read_progress, save_checkpoint
from capsella.training.gradients import TrainingDivergedError, explained_alone, gradient_norms
from capsella.training.images import images_of, keep_split, say_of_images
from capsella.training.logs import StepBar, epoch_line, open_events, progress_bar, write_events, write_metrics
from capsella.training.mixup import mix
from capsella.training.options import Machine
from capsella.training.recipe import Recipe
from capsella.training.run import Run, RunFolder, load_run
from capsella.training.settle import settle
from capsella.training.validation import Validation, is_over, is_to_keep, kept_by, routing_row, summary_of, validate

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def train(
    recipe: Recipe, folder: Path, *, name: str = "unnamed", machine: Machine = Machine(),
    console: Console | None = None, until: int | None = None, splits: Splits | None = None,
) -> Run:  # fmt: skip
    """Train a new run into `folder` and return it with the weights that the recipe keeps.

    Args:
        recipe, folder, name: what is trained, where, and what it is called.
        machine: where it is computed.
        console: for progress.
        until: pause after this epoch, as if interrupted: `resume` goes on, and computes what an unbroken training does.
        splits: the images of the recipe, where they are loaded already.

    Raises:
        CapsellaError: a run is in `folder` already, or another process trains there; it lies among the images; data is
            missing or broken; the disk is full.
        TrainingDivergedError: NaN or infinity; the last good checkpoint stays.
        ValueError: the images do not fit the network.
    """
    devices.check_devices(machine)
    recipe.data.check_outside(folder)
    files = RunFolder(folder)
    with files.alone(machine):
        files.check_unused()
        recipe, precision, votes = settle(recipe, machine)
        fabric = devices.launch(recipe, machine)
        files = RunFolder(devices.folder_of_first(fabric, folder))
        trainer = Trainer(recipe, machine, files, name, fabric, console or Console(), splits)
        for field, choice in (("precision", precision), ("votes", votes), ("balance", trainer.balance_choice)):
            if choice is not None:
                trainer.console.print(f"{field} {choice}", markup=False, soft_wrap=True)
        if fabric.is_global_zero:
            files.write_config(name, trainer.recipe, machine, trainer.splits.digests())
            keep_split(files, recipe.data, trainer.splits)
        trainer.run(until)
        return load_run(files.path)


def resume(
    folder: Path, *, machine: Machine | None = None, console: Console | None = None, until: int | None = None,
    splits: Splits | None = None,
) -> Run:  # fmt: skip
    """Continue the training in `folder` from its last checkpoint; a finished one is returned as it is.

    machine: where it goes on, also with another number of processes; default: where it was. The others: as for `train`.

    Raises:
        CapsellaError: no run, or no checkpoint, is there, or an adapted run; and what `train` raises.
    """
    files = RunFolder(folder)
    (name, recipe, _), before = files.read_config(), files.read_machine()
    machine = before if machine is None else machine
    if files.is_trained_for_good:
        return load_run(folder)
    progress = read_progress(files.checkpoint)  # damaged ones are told before all images are read
    if machine != before:
        devices.check_devices(machine)
    with files.alone(machine):
        if files.is_trained and is_over(recipe, progress):  # neither its images nor its stem need to be there any more
            return load_run(folder)
        fabric, images = devices.launch(recipe, machine), images_of(files, recipe.data, splits)
        trainer = Trainer(recipe, machine, files, name, fabric, console or Console(), images)
        trainer.progress = load_checkpoint(files.checkpoint, trainer.model, trainer.optimizer, trainer.average)
        trainer.progress.share_sums(trainer.fabric.world_size)
        if fabric.is_global_zero and machine != before:
            files.write_machine(machine)
        trainer.run(until)
        return load_run(folder)


class Trainer:
    """One training: model, optimizer, data and progress, and the steps that move them on."""

    def __init__(
        self, recipe: Recipe, machine: Machine, files: RunFolder, name: str, fabric: "Fabric", console: Console,
        splits: Splits | None = None,
    ) -> None:  # fmt: skip
        self.machine, self.files, self.name, self.fabric = machine, files, name, fabric
        self._is_first = bool(fabric.is_global_zero)
        self.console = console if self._is_first else Console(quiet=True)
        self.splits = splits = splits or load_data(recipe.data)
        found = recipe.with_found(splits.value_range, splits.cell_radius)
        self.recipe, self.balance_choice = settle_balance(found, splits.train)
        torch.manual_seed(self.recipe.seed)
        self.model = self.recipe.model.create(splits.image_size, splits.channels, splits.classes)
        self.model.value_range, self.model.cut = splits.value_range, self.recipe.data.cut
        if self.recipe.channels_last:
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = self.recipe.optimizer.create([one for one in self.model.parameters() if one.requires_grad])
        self.augment = Augment(self.recipe.augment, splits.image_size).to(fabric.device)
        self.network, self.wrapped_optimizer = fabric.setup(self.model, self.optimizer)
        weights = class_weights(self.recipe, splits.train)
        self.class_weights = None if weights is None else weights.to(fabric.device)
        self.average = None if (ema := self.recipe.optimizer.ema) is None else average_of(self.model, ema)
        self.judged = self.model if self.average is None else cast(ImageClassifier, self.average.module)
        self.progress = Progress()
        epoch, size = torch.arange(self.recipe.epoch_images or len(splits.train)), self.recipe.batch_size
        self.steps, self.steps_alone = (len(epoch_batches(epoch, size, n)) for n in (fabric.world_size, 1))
        self.total_steps = self.recipe.epochs * self.steps_alone

    def run(self, until: int | None = None) -> None:
        """Train until the last epoch, or until validation has stopped getting better; or pause after epoch `until`."""
        with devices.ends_with_others(self.fabric, self.files.path):
            if self._is_first:
                self._begin()
            shown = self.recipe.epochs * self.steps
            events = open_events(self.files.events, self.progress.step) if self._is_first else nullcontext()
            with events as writer, progress_bar(self.console, self.name, shown, self.progress.step) as bar:
                while not self._is_trained and (until is None or self.progress.epoch < until):
                    self._train_epoch(bar)
                    row = self._finish_epoch()
                    if writer is not None:
                        write_events(writer, row)
                    if self._is_first:
                        self.console.print(epoch_line(row, self.recipe.epochs, kept_by(self.recipe)), soft_wrap=True)
            if self._is_first and self._is_trained:
                self._finish()
            self.fabric.barrier()

    def _finish(self) -> None:
        """Calibrate, and write the summary, which says that the training is complete."""
        splits, device = self.splits, self.fabric.device
        if not self.recipe.data.is_paired:
            calibrate_folder(self.files.path, splits.train, splits.validation, device, self.recipe.batch_size)
        self.files.write("summary", summary_of(self.recipe, self.progress, splits.broken, device))

    def _begin(self) -> None:
        """Leave a checkpoint to resume from, remove what a kill left half written, name the images left out."""
        for part in self.files.path.glob(".*.part"):
            part.unlink()
        if self.progress.step == 0:
            self._save_checkpoint()
        say_of_images(self.splits, self.recipe.data.name in ("folder", "npz"), self.console)

    def _train_epoch(self, bar: StepBar) -> None:
        self.network.train()
        saved = time.monotonic()
        for chosen in self._epoch_batches():
            started = time.monotonic()
            bar.advance(self._train_step(chosen))
            self._add(seconds=time.monotonic() - started)
            if time.monotonic() - saved > self.machine.checkpoint_seconds:
                self._save_checkpoint()
                saved = time.monotonic()

    def _epoch_batches(self) -> list[Tensor]:
        """Indices of the batches of this epoch that are still to do, each of all devices together."""
        generator = torch.Generator().manual_seed(self._seed_of(self.progress.epoch, stream=1))
        order = order_of(self.recipe, self.splits.train, generator)
        size, devices, done = self.recipe.batch_size, self.fabric.world_size, self.progress.images
        if not done:  # nothing, or in a checkpoint from before images were counted
            return epoch_batches(order, size, devices)[self.progress.batch :]
        left = len(order) - done
        if 0 < left < (least := min(size, 2 * devices)):  # fewer devices began, and left too few: some are seen again
            left = min(least, len(order))
        return epoch_batches(order[len(order) - left :], size, devices) if left else []

    def _train_step(self, batch: Tensor) -> str:
        """One optimizer step, with this device's part of a batch; returns the state of things in a few words."""
        progress, options = self.progress, self.recipe.optimizer
        world, rank = self.fabric.world_size, self.fabric.global_rank
        chosen = batch[rank::world]
        torch.manual_seed(self._seed_of(progress.step * world + rank, stream=2))
        images, labels, parts = next(batches(self.splits.train, len(chosen), order=chosen, device=self.fabric.device))
        images, position = self.augment(images), progress.position(self.steps, self.steps_alone)
        for group in self.optimizer.param_groups:
            group["lr"] = options.rate_at(position, self.total_steps)
        images, others = mix(images, labels, mixup) if (mixup := self.recipe.augment.mixup) else (images, None)
        with explained_alone(len(images)):
            output = self.network(images, labels)
        spread = self.recipe.loss.spread_at(position, self.total_steps)
        weights = self.class_weights
        losses = total_loss(
            output, images, labels, self.recipe.loss, parts=parts, spread=spread, class_weights=weights, others=others
        )
        self.wrapped_optimizer.zero_grad()
        # Gradients are averaged over the devices, of which some have an image more of an epoch's last batch.
        self.fabric.backward(losses.total * (len(chosen) * world / len(batch)))
        layers, norms = gradient_norms(self.model)
        norm = torch.linalg.vector_norm(norms)
        self._check_finite("loss", float(losses.total.detach()), progress.step + 1)
        self._check_finite("norm of the gradient", float(norm), progress.step + 1)
        if options.gradient_clip is not None:
            torch.nn.utils.clip_grads_with_norm_(self.model.parameters(), options.gradient_clip, norm)
        self.wrapped_optimizer.step()
        if self.average is not None:
            self.average.update_parameters(self.model)
        self._add(images=len(labels), errors=count_errors(output.activations, labels))
        self._add(**{name: float(part.detach()) * len(labels) for name, part in losses._asdict().items()})
        self._add(**{f"gradient_{layer}": value for layer, value in zip(layers, norms.tolist(), strict=True)})
        progress.batch, progress.step = progress.batch + 1, progress.step + 1
        progress.images += len(batch)
        return f"loss {float(losses.total.detach()):.4f}"

    def _add(self, **amounts: float) -> None:
        sums = self.progress.sums
        for name, amount in amounts.items():
            sums[name] = sums.get(name, 0.0) + amount

    def _check_finite(self, what: str, value: float, step: int) -> None:
        """Stop before a bad step is taken, so that no weight ever becomes NaN."""
        if not math.isfinite(value):
            rate = self.optimizer.param_groups[0]["lr"]
            raise TrainingDivergedError(
                f"the {what} is {value} at epoch {self.progress.epoch + 1}, step {step} (learning rate {rate:.3g})",
                f"the last checkpoint is {self.files.checkpoint}; a smaller learning rate or --gradient-clip may help",
            )

    def _finish_epoch(self) -> EpochRow:
        """Validate, keep the weights where they are to be kept, write metrics and checkpoint."""
        progress, sums = self.progress, devices.sums_over_devices(self.progress.sums, self.fabric)
        self.judged.eval()
        validation = self._validate(self.splits.validation)
        self._check_finite("validation loss", validation.loss, progress.step)
        progress.epoch += 1
        own: EpochRow = {
            "epoch": progress.epoch,
            "step": progress.step,
            "images_seen": int(sum(row["train_images"] for row in progress.history) + sums["images"]),
            "train_images": int(sums["images"]),
            "learning_rate": self.optimizer.param_groups[0]["lr"],
            "train_loss": sums["total"] / sums["images"],
            "train_classification": sums["classification"] / sums["images"],
            "train_reconstruction": sums["reconstruction"] / sums["images"],
            "train_error": 100 * sums["errors"] / sums["images"],
            **{f"validation_{name}": value for name, value in validation._asdict().items()},
            "images_per_second": sums["images"] / sums["seconds"],
            "seconds": sums["seconds"],
            **routing_row(self.judged, self.splits.validation, self.fabric.device),
            **{name: total / progress.batch for name, total in sums.items() if name.startswith("gradient_")},
        }
        if self.recipe.stop_at_error is not None and self.recipe.stop_on == "test":
            own["test_error"] = self._validate(self.splits.test).error
        row = self.fabric.broadcast(own)  # running statistics differ from process to process, but all end together
        progress.history.append(row)
        progress.batch, progress.images, progress.sums = 0, 0, {}
        if is_to_keep(self.recipe, row, progress.best):
            progress.best = row
            if self._is_first:
                self.judged.save_pretrained(self.files.path)
        if self._is_first:
            write_metrics(self.files.metrics, progress.history)
        self._save_checkpoint()
        return row

    def _validate(self, images: LabelledImages) -> Validation:
        """Loss and errors of the weights that would be kept."""
        return validate(self.judged, images, self.recipe.loss, self.recipe.batch_size, self.fabric)

    @property
    def _is_trained(self) -> bool:
        return is_over(self.recipe, self.progress)

    def _save_checkpoint(self) -> None:
        if self._is_first:
            progress = self.progress.of_all(self.fabric.world_size)
            save_checkpoint(self.files.checkpoint, self.model, self.optimizer, progress, self.average)

    def _seed_of(self, number: int, *, stream: int) -> int:
        """A seed of its own for the order of an epoch (stream 1) and for a step (stream 2)."""
        return mixed_seed(self.recipe.seed, stream, number)
