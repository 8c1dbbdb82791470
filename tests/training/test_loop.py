"""The training loop: what a step computes, which epoch is kept, when training stops."""

import csv
import json
from dataclasses import replace

import pytest
import safetensors.torch
import torch
from scipy.stats import beta
from sklearn.metrics import balanced_accuracy_score

from capsella.data import load_data
from capsella.evaluation import evaluate
from capsella.losses import total_loss
from capsella.models import create_model
from capsella.training import OptimizerOptions, load_run
from capsella.training.augment import Augment, mixup
from capsella.training.loop import Trainer, exponential_average
from capsella.training.progress import Validation, is_better

LR = 1e-3


def weights(folder):
    return safetensors.torch.load_file(folder / "model.safetensors")


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def metrics(folder):
    with open(folder / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


def test_the_loss_falls_and_the_metrics_are_those_of_the_run(tiny, quiet_train):
    run = quiet_train(tiny(epochs=6, optimizer=OptimizerOptions(learning_rate=5e-3)))
    rows = metrics(run.folder)
    assert [row["epoch"] for row in rows] == ["1", "2", "3", "4", "5", "6"]
    assert [row["step"] for row in rows] == ["7", "14", "21", "28", "35", "42"]
    assert [row["images_seen"] for row in rows] == ["50", "100", "150", "200", "250", "300"]
    losses = [float(row["train_loss"]) for row in rows]
    assert losses[-1] < 0.8 * losses[0]
    for row in rows:
        terms = float(row["train_classification"]) + float(row["train_reconstruction"])
        assert float(row["train_loss"]) == pytest.approx(terms, rel=1e-4)
        assert float(row["learning_rate"]) == pytest.approx(5e-3 * 0.96 ** ((int(row["step"]) - 1) / 2000), rel=1e-5)


def test_a_run_folder_can_be_read_back(run, tiny):
    read = load_run(str(run))
    assert (read.recipe, read.name, read.model.training) == (tiny(), "tiny", False)
    assert same(read.model.state_dict(), weights(run))
    report, rows = summary(run), metrics(run)
    assert report["epochs"] == 2
    assert report["seconds"] == pytest.approx(sum(float(row["seconds"]) for row in rows), rel=1e-4)
    assert report["peak_memory_mib"] > 50
    assert report["broken_images"] == []
    # Counts are whole numbers, which metrics.csv writes in full however large.
    assert all(type(report["best"][name]) is int for name in ("epoch", "step", "images_seen", "train_images"))
    assert list((run / "events").iterdir())


def test_equal_recipes_compute_the_same_and_other_seeds_do_not(tiny, quiet_train, monkeypatch):
    """Order and augmentation follow the seed too; PyTorch's CPU generator drops the upper half of a seed."""
    batches = []
    augment = Augment.forward
    monkeypatch.setattr(
        Augment, "forward", lambda self, images: (batches.append(images.clone()), augment(self, images))[1]
    )
    seeds = (0, 0, 1, 2**22 - 1)
    folders = [
        quiet_train(tiny(epochs=1, deterministic=True, seed=seed), f"{k}").folder for k, seed in enumerate(seeds)
    ]
    first, second, *others = ((folder / "model.safetensors").read_bytes() for folder in folders)
    assert first == second not in others
    assert all(map(torch.equal, batches[:7], batches[7:14]))
    assert not any(map(torch.equal, batches[:7], batches[14:21]))


def test_each_step_draws_random_numbers_of_its_own(tiny, quiet_train, monkeypatch):
    """A seed that every step shares would change all batches of an epoch alike."""
    drawn, augment = [], Augment.forward

    def draw(self, images):
        drawn.append(tuple(torch.rand(4).tolist()))
        return augment(self, images)

    monkeypatch.setattr(Augment, "forward", draw)
    quiet_train(tiny())
    assert len(set(drawn)) == len(drawn) == 14


def test_what_cannot_be_trained_leaves_no_folder(tiny, quiet_train, tmp_path):
    with pytest.raises(ValueError, match=r"^image_size:"):
        quiet_train(tiny(data=replace(tiny().data, size=3)))
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match=r"^accelerator, devices:"):
            quiet_train(tiny(), accelerator="cuda")
    assert not (tmp_path / "run").exists()


def test_a_clipped_gradient_makes_short_steps(tiny, quiet_train, last_checkpoint):
    """Adam's first update is learning rate × g / (|g| + 1e-8): without clipping it is nearly the learning rate."""
    moves = []
    for clip in (None, 1e-11):
        options = OptimizerOptions(learning_rate=LR, gradient_clip=clip)
        recipe = tiny(epochs=1, batch_size=50, seed=3, optimizer=options)
        after = last_checkpoint(quiet_train(recipe, f"clip {clip}").folder)["model"]
        torch.manual_seed(recipe.seed)
        before = create_model(recipe.model.name, image_size=12).state_dict()
        moves.append(max(float((after[name] - before[name]).abs().max()) for name in before))
    assert 0.9 * LR < moves[0] < 1.001 * LR
    assert 0 < moves[1] < 1e-3 * LR


def test_the_weights_are_those_of_the_best_epoch_and_patience_ends_the_run(
    tiny, quiet_train, last_checkpoint, monkeypatch
):
    """Validation results are scripted; the training is real."""
    results = iter([(1, 50), (1, 20), (1, 30), (0.5, 40), *[(1, 50), (1, 20)], *[(1, 10), (1, 20)]])

    def validate(self, images):
        loss, error = next(results)
        return Validation(loss, error, error)

    monkeypatch.setattr(Trainer, "_validate", validate)
    run = quiet_train(tiny(epochs=10, patience=2))
    assert (len(metrics(run.folder)), summary(run.folder)["best"]["epoch"]) == (4, 2)
    two = quiet_train(tiny(epochs=2), "two")
    assert same(weights(run.folder), last_checkpoint(two.folder)["model"])
    assert same(run.model.state_dict(), weights(run.folder))
    last = quiet_train(tiny(epochs=2, keep="last"), "last")
    assert summary(last.folder)["best"]["epoch"] == 2
    assert same(weights(last.folder), weights(run.folder))


def test_a_lower_error_is_better_and_at_an_equal_error_a_lower_loss(tiny):
    def better(row, best, **fields):
        names = ("validation_loss", "validation_error", "validation_balanced_error")
        return is_better(tiny(**fields), *(dict(zip(names, values, strict=True)) for values in (row, best)))

    assert better((0.4, 20, 20), (0.5, 20, 20))
    assert not better((0.4, 20, 20), (0.4, 20, 20))
    assert not better((0.1, 21, 21), (0.4, 20, 20))
    assert not better((1, 35, 45), (1, 30, 60))
    assert better((1, 35, 45), (1, 30, 60), balance="sampling")


def test_only_training_images_are_augmented_and_each_is_seen_once_per_epoch(tiny, quiet_train, monkeypatch):
    seen = {True: [], False: []}
    make = create_model

    def watched_model(*arguments, **options):
        model = make(*arguments, **options)
        model.register_forward_pre_hook(lambda module, inputs: seen[module.training].append(inputs[0].clone()))
        return model

    def in_order(images):
        return torch.stack(sorted(images, key=lambda image: image.flatten().tolist()))

    monkeypatch.setattr(Augment, "forward", lambda self, images: 1 - images)
    monkeypatch.setattr("capsella.models.create_model", watched_model)
    quiet_train(tiny())
    splits = load_data(tiny().data)
    assert torch.equal(torch.cat(seen[False]), (splits.validation.images.float() / 255).repeat(2, 1, 1, 1))
    expected, (first, second) = 1 - splits.train.images.float() / 255, torch.cat(seen[True]).chunk(2)
    assert torch.equal(in_order(first), in_order(expected))
    assert torch.equal(in_order(second), in_order(expected))
    assert not torch.equal(first, second)


def test_validation_is_the_mean_over_all_its_images(run):
    """The last batch of a set that 8 does not divide must not count like the others."""
    trained = load_run(run)
    row = summary(run)["best"]
    validation = load_data(trained.recipe.data).validation
    assert len(validation) % 8
    with torch.no_grad():
        images = validation.images.float() / 255
        output = trained.model(images, validation.labels)
        loss = total_loss(output, images, validation.labels, trained.recipe.loss).total
    predicted = output.activations.argmax(1)
    recall = balanced_accuracy_score(validation.labels, predicted)
    expected = [float(loss), 100 * float((predicted != validation.labels).float().mean()), 100 * (1 - recall)]
    found = [row[f"validation_{name}"] for name in ("loss", "error", "balanced_error")]
    assert found == pytest.approx(expected, rel=1e-4)


class TestAverage:
    """The exponential moving average of the weights."""

    def test_by_hand(self):
        layer = torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False), torch.nn.BatchNorm1d(1))
        average = exponential_average(layer, decay=0.15)
        expected = 0.0
        for n, value in enumerate([1.0, 2.0, 5.0]):
            with torch.no_grad():
                layer[0].weight.fill_(value)
            layer[1].running_mean.fill_(10 * value)
            layer[1].num_batches_tracked.fill_(n + 1)
            average.update_parameters(layer)
            decay = 0.0 if n == 0 else min(0.15, (1 + n) / (10 + n))  # 2/11 and 3/12 are above 0.15
            expected = decay * expected + (1 - decay) * value
        assert float(average.module[0].weight) == pytest.approx(expected)
        assert float(average.module[1].running_mean) == pytest.approx(10 * expected)
        assert int(average.module[1].num_batches_tracked) == 3
        early = exponential_average(layer, decay=0.999)
        for value in (0.0, 1.0):
            with torch.no_grad():
                layer[0].weight.fill_(value)
            early.update_parameters(layer)
        assert float(early.module[0].weight) == pytest.approx(1 - 2 / 11)  # and not 0.001

    def test_it_is_validated_and_kept(self, tiny, quiet_train, last_checkpoint):
        run = quiet_train(tiny(optimizer=OptimizerOptions(ema=0.9)))
        state, best = last_checkpoint(run.folder), summary(run.folder)["best"]
        assert best["epoch"] == 2
        kept = run.model.state_dict()
        assert all(torch.equal(kept[name], state["average"][f"module.{name}"]) for name in kept)
        assert any(not torch.equal(kept[name], state["model"][name]) for name in kept)
        validation = load_data(run.recipe.data).validation
        assert evaluate(run.model, validation).error == pytest.approx(best["validation_error"])


@pytest.mark.parametrize("split", ["validation", "test"])
def test_training_stops_at_an_error(tiny, quiet_train, split):
    """The threshold is the second-lowest error of a whole training, so that its lowest does not come first."""
    fields = {"epochs": 5, "epoch_images": 24, "stop_on": split}
    whole = quiet_train(tiny(**fields, stop_at_error=0.0), "whole").folder
    errors = [float(row[f"{split}_error"]) for row in metrics(whole)]
    assert len(errors) == 5
    assert summary(whole)["stopped"]["reached"] is False
    threshold = sorted(errors)[1] + 1e-3  # metrics.csv has six digits
    expected = next(number for number, error in enumerate(errors, 1) if error <= threshold)
    run = quiet_train(tiny(**fields, stop_at_error=threshold), "stopped")
    report = summary(run.folder)
    assert report["epochs"] == report["best"]["epoch"] == expected
    assert report["stopped"] == {
        "at_error": threshold,
        "on": split,
        "reached": True,
        "epoch": expected,
        "error": pytest.approx(errors[expected - 1], rel=1e-4),
    }
    images = getattr(load_data(run.recipe.data), split)
    assert evaluate(run.model, images).error == pytest.approx(errors[expected - 1], rel=1e-4)


class TestMixup:
    def test_each_image_is_blended_with_another_of_its_batch(self):
        labels = torch.arange(64)
        images = labels.float()[:, None, None, None].expand(-1, 1, 3, 3)
        mixed, others = mixup(images, labels, 0.2)
        blend = (1 - others.share) * labels + others.share * others.labels
        torch.testing.assert_close(mixed, blend[:, None, None, None].expand(-1, 1, 3, 3))
        assert sorted(others.labels.tolist()) == labels.tolist()
        assert 0 <= others.share.min() < 0.01 < 0.3 < others.share.max() <= 0.5

    @pytest.mark.parametrize("alpha", [0.2, 10.0])
    def test_shares_follow_the_beta_distribution(self, alpha):
        _, others = mixup(torch.rand(20_000, 1, 1, 1), torch.zeros(20_000, dtype=torch.long), alpha)
        mean = beta(alpha, alpha).expect(lambda share: min(share, 1 - share))
        assert others.share.mean().item() == pytest.approx(mean, abs=0.005)
