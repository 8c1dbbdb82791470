import csv
import dataclasses
import json
import os
from contextlib import contextmanager

import pytest
import safetensors.torch
import torch
from sklearn.metrics import balanced_accuracy_score

from capsella.data import load_data
from capsella.errors import CapsellaError
from capsella.losses import total_loss
from capsella.models import create_model
from capsella.papers import get_recipe
from capsella.training import AugmentOptions, OptimizerOptions, load_run
from capsella.training.augment import Augment
from capsella.training.devices import peak_memory_mib
from capsella.training.loop import Trainer
from capsella.training.validation import Validation

LR = 1e-3


def weights(folder):
    return safetensors.torch.load_file(folder / "model.safetensors")


def fresh_weights(recipe):
    """What a training of `recipe` starts from."""
    torch.manual_seed(recipe.seed)
    return create_model(recipe.model.name, **recipe.model.options, image_size=12).state_dict()


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def rows(folder):
    with open(folder / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_the_loss_falls_and_the_metrics_are_those_of_the_run(tiny, quiet_train):
    run = quiet_train(tiny(epochs=6, optimizer=OptimizerOptions(learning_rate=5e-3)))
    metrics = rows(run.folder)
    assert [row["epoch"] for row in metrics] == ["1", "2", "3", "4", "5", "6"]
    assert [row["step"] for row in metrics] == ["7", "14", "21", "28", "35", "42"]
    assert [row["images_seen"] for row in metrics] == ["50", "100", "150", "200", "250", "300"]
    losses = [float(row["train_loss"]) for row in metrics]
    assert losses[-1] < 0.8 * losses[0]
    for row in metrics:
        parts = float(row["train_classification"]) + float(row["train_reconstruction"])
        assert float(row["train_loss"]) == pytest.approx(parts, rel=1e-4)
        assert float(row["learning_rate"]) == pytest.approx(5e-3 * 0.96 ** ((int(row["step"]) - 1) / 2000), rel=1e-5)


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the system cannot count anew")
def test_memory_that_was_freed_before_the_training_does_not_count(tiny, quiet_train):
    ballast = torch.ones(2**28)
    before = peak_memory_mib(torch.device("cpu"))
    del ballast
    run = quiet_train(tiny(epochs=1))
    assert json.loads((run.folder / "summary.json").read_text())["peak_memory_mib"] < before - 500


def test_a_run_folder_can_be_read_back(tiny, quiet_train):
    recipe = tiny(epochs=1)
    run = quiet_train(recipe)
    read = load_run(str(run.folder))
    assert read.recipe == recipe
    assert read.name == "tiny"
    assert not read.model.training
    assert same(read.model.state_dict(), run.model.state_dict())
    summary = json.loads((run.folder / "summary.json").read_text())
    row = rows(run.folder)[0]
    assert summary["best"]["epoch"] == summary["epochs"] == 1
    assert summary["seconds"] == pytest.approx(float(row["seconds"]), rel=1e-4)
    assert summary["images_per_second"] == pytest.approx(50 / summary["seconds"])
    assert summary["peak_memory_mib"] > 50
    assert summary["broken_images"] == []
    # Counts are whole numbers, which metrics.csv writes in full however large.
    assert all(type(summary["best"][name]) is int for name in ("epoch", "step", "images_seen", "train_images"))
    assert list((run.folder / "events").iterdir())


def test_equal_recipes_compute_the_same_and_other_seeds_do_not(tiny, quiet_train):
    first, second = (quiet_train(tiny(deterministic=True), name).folder for name in ("a", "b"))
    other = quiet_train(tiny(deterministic=True, seed=1), "c").folder
    assert (first / "model.safetensors").read_bytes() == (second / "model.safetensors").read_bytes()
    assert not same(weights(first), weights(other))


def test_a_seed_gives_order_and_changes_of_its_own(tiny, quiet_train, monkeypatch):
    """PyTorch's generator for the CPU drops the upper half of a seed: a seed there would change the weights alone."""
    orders, draws = [], []
    augment = Augment.forward

    def watched(self, images):
        orders.append(images.clone())
        draws.append(torch.rand(1, generator=torch.Generator().set_state(torch.get_rng_state())).item())
        return augment(self, images)

    monkeypatch.setattr(Augment, "forward", watched)
    for seed in (0, 1, 0):
        quiet_train(tiny(epochs=1, seed=seed), f"run{len(draws)}")
    first, second, again = (orders[at : at + 7] for at in (0, 7, 14))
    assert all(map(torch.equal, first, again))
    assert not any(map(torch.equal, first, second))
    assert draws[:7] == draws[14:]
    assert len(set(draws)) == 14


def test_the_largest_seed_works(tiny, quiet_train):
    assert quiet_train(tiny(epochs=1, seed=2**22 - 1)).recipe.seed == 4194303


def test_a_folder_that_holds_a_run_is_refused(tiny, quiet_train):
    folder = quiet_train(tiny(epochs=1)).folder
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    with pytest.raises(CapsellaError) as error:
        quiet_train(tiny(epochs=1, seed=5))
    assert (
        str(error.value)
        == f"{folder} holds a run already; choose another folder, or continue a training with capsella train --resume"
    )
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


@pytest.fixture
def normalised_maps_of_a_pixel(monkeypatch):
    """Batch normalisation before the network, behind maps that have shrunk to one pixel."""
    norm, step = torch.nn.BatchNorm2d(1), Trainer._train_step

    def through_norm(self, batch):
        self.network.register_forward_pre_hook(lambda _, given: [norm(given[0].mean((1, 2, 3), keepdim=True)), None][1])
        return step(self, batch)

    monkeypatch.setattr(Trainer, "_train_step", through_norm)


def test_a_single_image_that_is_left_over_joins_the_batch_before_it(tiny, quiet_train, normalised_maps_of_a_pixel):
    images = len(load_data(tiny().data).train)
    run = quiet_train(dataclasses.replace(tiny(epochs=2), batch_size=images - 1))
    assert [(row["step"], row["train_images"]) for row in rows(run.folder)] == [("1", str(images)), ("2", str(images))]


def test_batches_of_one_image_are_explained(tiny, quiet_train, normalised_maps_of_a_pixel):
    with pytest.raises(CapsellaError, match="batch_size: must give a batch normalisation of this network two images"):
        quiet_train(dataclasses.replace(tiny(epochs=1), batch_size=1))


def test_images_too_small_for_the_network_leave_no_folder(tiny, quiet_train, tmp_path):
    recipe = tiny()
    with pytest.raises(ValueError, match="image_size: must be at least 7×7 for these kernels, got 3×3"):
        quiet_train(dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, size=3)))
    assert not (tmp_path / "run").exists()


class TestOptimizer:
    """A step from known weights, against Adam written out: the first update is learning rate × g / (|g| + 1e-8)."""

    def one_step(self, tiny, quiet_train, last_checkpoint, **options):
        recipe = tiny(epochs=1, batch_size=50, seed=3, optimizer=OptimizerOptions(learning_rate=LR, **options))
        folder = quiet_train(recipe, "-".join(options) or "plain").folder
        before, after = fresh_weights(recipe), last_checkpoint(folder)["model"]
        return before, {name: after[name] - before[name] for name in before}

    def test_no_element_moves_further_than_the_learning_rate(self, tiny, quiet_train, last_checkpoint):
        _, moves = self.one_step(tiny, quiet_train, last_checkpoint)
        assert 0.9 * LR < max(float(move.abs().max()) for move in moves.values()) < 1.001 * LR

    def test_l2_pulls_every_weight_to_zero(self, tiny, quiet_train, last_checkpoint):
        before, moves = self.one_step(tiny, quiet_train, last_checkpoint, l2=1e6)
        for name, move in moves.items():
            clear = before[name].abs() > 1e-3  # where the penalty outweighs any gradient
            assert torch.allclose(move[clear], -LR * before[name][clear].sign(), atol=1e-3 * LR)

    def test_gradient_descent_goes_down_the_gradient(self, tiny, quiet_train, last_checkpoint):
        """With a penalty that outweighs any gradient of the loss, a step is in proportion to the weights."""
        before, moves = self.one_step(tiny, quiet_train, last_checkpoint, method="sgd", l2=1e2)
        for name, move in moves.items():
            clear = before[name].abs() > 1e-2 * before[name].abs().max()
            if clear.any() and before[name].abs().max() > 0.01:
                assert torch.allclose(move[clear], -LR * 1e2 * before[name][clear], rtol=0.2, atol=LR)

    def test_a_clipped_gradient_is_short(self, tiny, quiet_train, last_checkpoint):
        # No element above 1e-11 leaves g / (|g| + 1e-8) below 1e-3.
        _, moves = self.one_step(tiny, quiet_train, last_checkpoint, gradient_clip=1e-11)
        assert 0 < max(float(move.abs().max()) for move in moves.values()) < 1e-3 * LR

    def test_the_learning_rate_of_each_step_is_the_schedules(self, tiny, quiet_train, last_checkpoint):
        options = OptimizerOptions(learning_rate=LR, decay=0.5, decay_steps=1)
        state = last_checkpoint(quiet_train(tiny(epochs=1, optimizer=options)).folder)
        assert state["optimizer"]["param_groups"][0]["lr"] == pytest.approx(LR * 0.5**6)  # of the seventh step


class TestKeptEpoch:
    """Validation results are scripted; the training is real."""

    @pytest.fixture
    def scripted(self, monkeypatch, tiny, quiet_train):
        def run(losses_and_errors, name="run", **fields):
            results = iter(losses_and_errors)

            def validate(self, images):
                loss, error, *balanced = next(results)
                return Validation(loss, error, *(balanced or [error]))

            monkeypatch.setattr(Trainer, "_validate", validate)
            return quiet_train(tiny(**fields), name)

        return run

    def kept_epoch(self, run):
        return json.loads((run.folder / "summary.json").read_text())["best"]["epoch"]

    def test_the_weights_are_those_of_the_best_epoch_and_patience_ends_the_run(self, scripted, last_checkpoint):
        run = scripted([(1, 50), (1, 20), (1, 30), (0.5, 40), (0.1, 10)], epochs=10, patience=2)
        assert [row["epoch"] for row in rows(run.folder)] == ["1", "2", "3", "4"]
        assert self.kept_epoch(run) == 2
        two = scripted([(1, 50), (1, 20)], "two", epochs=2)
        assert same(weights(run.folder), last_checkpoint(two.folder)["model"])
        assert same(run.model.state_dict(), weights(run.folder))
        assert not same(weights(run.folder), last_checkpoint(run.folder)["model"])

    def test_at_an_equal_error_the_lower_loss_is_better(self, scripted):
        assert self.kept_epoch(scripted([(0.5, 20), (0.4, 20), (0.4, 20), (0.1, 21)], epochs=4)) == 2

    def test_where_classes_are_balanced_the_balanced_error_counts(self, scripted):
        results = [(1, 40, 50), (1, 30, 60), (1, 35, 45)]
        assert self.kept_epoch(scripted(results, epochs=3)) == 2
        assert self.kept_epoch(scripted(results, "sampling", epochs=3, balance="sampling")) == 3

    def test_the_last_epoch_is_kept_where_the_recipe_says_so(self, scripted, last_checkpoint):
        run = scripted([(1, 10), (1, 20), (1, 30)], epochs=3, keep="last")
        assert self.kept_epoch(run) == 3
        assert same(weights(run.folder), last_checkpoint(run.folder)["model"])

    def test_without_patience_all_epochs_run(self, scripted):
        assert len(rows(scripted([(1, 10)] + 3 * [(1, 20)], epochs=4).folder)) == 4


def test_only_training_images_are_augmented_and_each_is_seen_once_an_epoch(tiny, quiet_train, monkeypatch):
    seen = {True: [], False: []}

    def invert(self, images):
        return 1 - images

    def watch(module, inputs):
        seen[module.training].append(inputs[0].clone())

    make = create_model

    def watched_model(*arguments, **options):
        model = make(*arguments, **options)
        model.register_forward_pre_hook(watch)
        return model

    monkeypatch.setattr(Augment, "forward", invert)
    monkeypatch.setattr("capsella.training.options.create_model", watched_model)
    recipe = tiny(epochs=2)
    quiet_train(recipe)
    splits = load_data(recipe.data)
    unseen, validation = torch.cat(seen[False]), splits.validation.images.float() / 255
    assert torch.equal(unseen[: len(validation)], validation)
    # What the routing diagnostics look at are validation images as well.
    assert all((validation == image).flatten(1).all(1).any() for image in unseen[len(validation) :])
    expected, (first, second) = 1 - splits.train.images.float() / 255, torch.cat(seen[True]).chunk(2)
    assert torch.equal(in_order(first), in_order(expected))
    assert torch.equal(in_order(second), in_order(expected))
    assert not torch.equal(first, second)  # each epoch has an order of its own


def in_order(images):
    """The images sorted by their pixels."""
    return torch.stack(sorted(images, key=lambda image: image.flatten().tolist()))


def test_validation_is_the_mean_over_all_its_images(tiny, quiet_train):
    """The last batch of a set that 8 does not divide must not count like the others."""
    run = quiet_train(tiny(epochs=1, batch_size=8))
    validation = load_data(run.recipe.data).validation
    assert len(validation) % 8
    with torch.no_grad():
        images = validation.images.float() / 255
        output = run.model(images, validation.labels)
        loss = total_loss(output, images, validation.labels, run.recipe.loss).total
        error = 100 * (output.activations.argmax(1) != validation.labels).float().mean()
    row = rows(run.folder)[0]
    assert float(row["validation_loss"]) == pytest.approx(float(loss), rel=1e-4)
    assert float(row["validation_error"]) == pytest.approx(float(error), rel=1e-4)
    recall = balanced_accuracy_score(validation.labels, output.activations.argmax(1))
    assert float(row["validation_balanced_error"]) == pytest.approx(100 * (1 - recall), rel=1e-4)


def test_bf16_runs_and_learns_like_float32(tiny, quiet_train):
    options = {"epochs": 3, "optimizer": OptimizerOptions(learning_rate=5e-3)}
    full, half = (quiet_train(tiny(precision=p, **options), p).folder for p in ("32-true", "bf16-mixed"))
    losses = [[float(row["train_loss"]) for row in rows(folder)] for folder in (full, half)]
    assert losses[1] == pytest.approx(losses[0], rel=0.05)
    assert losses[1] != losses[0]
    assert all(tensor.dtype == torch.float32 for tensor in weights(half).values())


def test_a_device_that_is_not_there(tiny, quiet_train):
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(ValueError, match=r"accelerator, devices: must be there on this machine, got 1 of 'cuda'"):
        quiet_train(tiny(), accelerator="cuda")


def test_the_demo_is_a_recipe_of_the_paper_on_real_digits():
    recipe = get_recipe("demo")
    assert recipe.model.name == "sabour2017_capsnet"
    assert recipe.augment == AugmentOptions(shift=1)
    assert recipe.data.name == "digits"


def test_other_processes_that_die_at_the_end_of_a_training_are_named_too(tiny, quiet_train, tmp_path, monkeypatch):
    """While the first fits probabilities, the others wait for it."""
    seen = []

    @contextmanager
    def ends(fabric, folder):
        seen.append("begins")
        yield
        seen.append("ends")

    monkeypatch.setattr("capsella.training.devices.ends_with_others", ends)
    monkeypatch.setattr("capsella.training.loop.calibrate_folder", lambda *_: seen.append("fits"))
    quiet_train(tiny(), tmp_path / "run")
    assert seen == ["begins", "fits", "ends"]
