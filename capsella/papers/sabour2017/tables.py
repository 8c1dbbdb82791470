"""The tables, figures and claims of Sabour, Frosst, Hinton 2017, "Dynamic Routing Between Capsules"."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from capsella.data import ImageSet, LabelledImages, PairSet, single_images
from capsella.errors import ArgumentError
from capsella.evaluation import evaluate
from capsella.models import ImageClassifier
from capsella.papers.budget import Budget, BudgetName, Budgets, images, medium
from capsella.papers.figure_types import Drawn, RunFigure
from capsella.papers.table_types import (
    Claim,
    ErrorTable,
    MatchedErrorTable,
    RowSpec,
    Sweep,
    TestSet,
    error_rows,
    error_table,
    few_images_caveat,
)
from capsella.report import OFFSETS, dimension_tweaks, pairs_figure, pick_examples, reconstruct
from capsella.report.image_figures import columns_figure, tweak_figure
from capsella.report.reconstructions import pair_name, row_changes, share_nearest_own
from capsella.training import Recipe
from capsella.training.registry import with_fields

Draw = Callable[[ImageClassifier, LabelledImages], Drawn]
# Kernels of 9×9 train faster in float32, where `FastConv2d` saves most multiplications, than in bfloat16.
_medium = partial(medium, precision="32-true")
# Per digit the CNN costs ten times as much as CapsNet; per pair CapsNet costs three times as much. At the small budget,
# all rows take about an hour per seed on two cores.
DIGITS = Budgets(images(300, 30, 100, 3, 32), _medium(60_000, 64, epochs=5))
PAIRS = Budgets(
    Budget(epoch_images=4000, validation_pairs=500, test_pairs=1000, epochs=4, batch_size=16),
    _medium(10_000, 32, 24, validation_per_class=None, validation_pairs=1000, test_pairs=10_000),
)
AFFNIST = Budgets(
    Budget(epochs=120, epoch_images=250, batch_size=32, validation_per_class=10, test_per_class=100, ema=0.99),
    Budget(
        epochs=60, epoch_images=5000, batch_size=32, validation_per_class=10, test_per_class=300, ema=0.99,
        precision="32-true",
    ),
)  # fmt: skip
OTHERS = Budgets(images(500, 50, 100, 4, 32), _medium(10_000, 32))
STOPS = {"small": 5.0, "medium": 1.0}  # error on plain digits, in per cent, at which both networks of affNIST stop
MNIST, PAIRED, EFFICIENT = "sabour2017-mnist", "sabour2017-multimnist", "efficient-capsnet-multimnist"


def _capsnet(
    name: str, iterations: int, reconstruction: bool, error: float | None = None, sd: float | None = None
) -> RowSpec:
    yes, data = "yes" if reconstruction else "no", "MultiMNIST" if name == PAIRED else "MNIST"
    overrides = {"model.routing.iterations": iterations, "model.reconstruction": reconstruction}
    slug = f"{name.removeprefix('sabour2017-')}-{iterations}-{yes}"
    return RowSpec(slug, name, (data, "CapsNet", str(iterations), yes), error, sd, overrides)


# Published errors in per cent; those of MNIST have a standard deviation over three trainings.
TABLE_1 = (
    RowSpec("mnist-cnn", "sabour2017-mnist-cnn", ("MNIST", "CNN", "–", "–"), 0.39),
    _capsnet(MNIST, 1, False, 0.34, 0.032),
    _capsnet(MNIST, 1, True, 0.29, 0.011),
    _capsnet(MNIST, 3, False, 0.35, 0.036),
    _capsnet(MNIST, 3, True, 0.25, 0.005),
    RowSpec("multimnist-cnn", "sabour2017-multimnist-cnn", ("MultiMNIST", "CNN", "–", "–"), 8.1),
    _capsnet(PAIRED, 1, False),
    _capsnet(PAIRED, 1, True, 7.5),
    _capsnet(PAIRED, 3, False),
    _capsnet(PAIRED, 3, True, 5.2),
    RowSpec("multimnist-efficient", EFFICIENT, ("MultiMNIST", "Efficient-CapsNet", "–", "no")),
)
# The error on CIFAR-10 is that of an ensemble of seven networks.
OTHER_DATA = (
    RowSpec("cifar10", "sabour2017-cifar10", ("CIFAR-10", "3"), 10.6),
    RowSpec("smallnorb", "sabour2017-smallnorb", ("smallNORB", "3"), 2.7),
    RowSpec("fashion-mnist", "sabour2017-fashion-mnist", ("Fashion-MNIST", "3")),
)
# Published errors in per cent: on plain digits, where each network was stopped, and under affine maps.
AFFNIST_ROWS = (
    RowSpec("capsnet", "sabour2017-affnist", ("CapsNet",), (0.77, 21.0)),
    RowSpec("cnn", "sabour2017-affnist-cnn", ("CNN",), (0.78, 34.0)),
)
PLAIN = TestSet("test", "plain")
AFFINE_LIKE = TestSet("affnist-like", "affine", lambda data: data.on("affnist-like"), " (stand-in)")


def table_1(budget: BudgetName) -> ErrorTable:
    """Return Table 1: MNIST and MultiMNIST; 1 and 3 iterations, with and without reconstruction, and the CNNs."""

    def limit(recipe: Recipe) -> Recipe:
        return (PAIRS if recipe.data.is_paired else DIGITS).limit(recipe, budget)

    # The medium budget has no time for rows that the paper does not have.
    specs = [s for s in TABLE_1 if s.paper is not None or s.recipe == EFFICIENT or budget != "medium"]
    return ErrorTable(
        title="Sabour et al. 2017, Table 1",
        note=(DIGITS.note(budget, "MNIST: ") + PAIRS.note(budget, "MultiMNIST: ")).rstrip(),
        columns=("data", "network", "routing", "reconstruction"),
        rows=error_rows(specs, limit),
        caveat_text=few_images_caveat(budget),  # the medium budget has five passes over the digits, and 240,000 pairs
    )


# Trains on 60,000 digits, validates on 5,000 others.
SWEEP = _medium(30_000, 64, epochs=2, validation_per_class=500)
SMALL_SWEEP = images(20, 10, 1, 1, 32)


def rates(budget: BudgetName) -> Sweep:
    """Return a sweep of CapsNet's learning rate on MNIST, for 1 and 3 iterations, and weighted and plain votes."""
    specs = [
        RowSpec(
            f"{votes}-{rate:g}-{iterations}",
            MNIST,
            ("weighted 1/32" if votes == "weighted" else "plain", f"{rate:g}", str(iterations)),
            overrides={
                "model.routing.iterations": iterations,
                "model.uniform_primary_couplings": votes == "weighted",
                "optimizer.learning_rate": rate,
            },
        )
        for votes, tried in (("weighted", (1e-3, 3e-3, 1e-2)), ("plain", (3e-4, 1e-3)))
        for rate in tried
        for iterations in (1, 3)
    ]

    def limit(recipe: Recipe) -> Recipe:
        limited = _sweep_budget(budget).limit(recipe)
        warmed = with_fields(limited, {"optimizer.warmup_steps": 500})
        return limited if budget == "small" or recipe.model.options["uniform_primary_couplings"] else warmed

    return Sweep(
        title="Sabour et al. 2017: learning rates on MNIST",
        note=f"{_sweep_budget(budget)}. Plain votes have 500 warm-up steps.",
        columns=("votes", "rate", "iterations"),
        rows=error_rows(specs, limit),
    )


def decoder_weights(budget: BudgetName) -> Sweep:
    """Return a sweep of CapsNet's reconstruction weight on MNIST: the paper's 0.0005, and 4 and 20 times that."""
    specs = [
        RowSpec(f"{weight:g}", MNIST, (f"{weight:g}",), overrides={"loss.reconstruction_weight": weight})
        for weight in (0.0005, 0.002, 0.01)
    ]
    return Sweep(
        title="Sabour et al. 2017: weight of the reconstruction",
        note=f"{_sweep_budget(budget)}. With the authors' code, the paper's weight of 0.0005 is 0.01.",
        columns=("weight",),
        rows=error_rows(specs, _sweep_budget(budget).limit),
    )


def _sweep_budget(budget: BudgetName) -> Budget:
    return SMALL_SWEEP if budget == "small" else SWEEP


def others(budget: BudgetName) -> ErrorTable:
    """Return the table of other data sets (§7): CIFAR-10, smallNORB, and Fashion-MNIST, which the paper lacks."""
    note = (
        "One network per row; the paper's 10.6 % is of seven together, on 24×24 crops, its smallNORB cropped to 32×32."
    )
    return error_table("Sabour et al. 2017, section 7", note, ("data", "iterations"), OTHER_DATA, OTHERS, budget)


def affnist(budget: BudgetName) -> MatchedErrorTable:
    """Return the affNIST table (§5.2): networks stopped at one error on digits, tested under unseen affine maps."""

    def limit(recipe: Recipe) -> Recipe:
        return recipe if budget == "full" else replace(AFFNIST.limit(recipe, budget), stop_at_error=STOPS[budget])

    return MatchedErrorTable(
        title="Sabour et al. 2017, section 5.2: affNIST",
        note=AFFNIST.note(budget, "At most ").rstrip(),
        columns=("network",),
        rows=error_rows(AFFNIST_ROWS, limit),
        test_sets=(PLAIN, TestSet("affnist", "affine", lambda data: data.on("affnist"))),
        stand_ins={"affnist": {}, "affnist-like": {"test_sets": (PLAIN, AFFINE_LIKE)}},
        stop_caveat=f"at {STOPS['medium']:g} %" if budget == "medium" else "",
    )


LOOKED_AT = 1000  # examples are chosen among this many test images
TWEAKED = 6  # classes in Figure 4, as in the paper


def _figure(number: int, shows: str, slug: str, draw: Draw, budget: BudgetName) -> RunFigure:
    return RunFigure(
        file=f"sabour2017-{number}",
        title=f"Sabour et al. 2017, Figure {number}: {shows}",
        rows=tuple(row for row in table_1(budget).rows if row.slug == slug),
        draw=draw,
        family="sabour2017-1",
    )


def draw_reconstructions(model: ImageClassifier, images: LabelledImages) -> Drawn:
    """Draw Figure 3: correct examples, not hand-picked, and the most confident mistakes.

    The numbers include the percentage of test images whose reconstruction is nearer to them than to any other image.
    """
    few = _first(images)
    picked = pick_examples(evaluate(model, few))
    shown, labels = few.images[picked].float() / 255, few.labels[picked]
    part = reconstruct(model, shown, labels)
    true, predicted = ([few.classes[k] for k in classes.tolist()] for classes in (labels, part.predictions))
    rows = [pixels.numpy() for pixels in (shown, part.from_true, part.from_predicted)]
    titles = ("input", "from the\ntrue class", "from the\npredicted one")
    return columns_figure(rows, titles, true, predicted), {
        "test_images": picked.tolist(),
        "labels": true,
        "predictions": predicted,
        "nearest_is_own_percent": 100 * share_nearest_own(model, few.images, few.labels),
        "nearest_among": len(few),
    }


def draw_tweaks(model: ImageClassifier, images: LabelledImages) -> Drawn:
    """Draw Figure 4: for each of the first six classes, the pose element that changes the reconstruction most.

    Each class is shown by its first correctly classified test image; a class without one has no row.
    """
    few = _first(images)
    evaluation = evaluate(model, few)
    rows, elements, shown = [], [], []
    for label in range(min(TWEAKED, len(few.classes))):
        right = (evaluation.correct & (few.labels == label)).nonzero()
        if len(right) == 0:
            continue
        index = int(right[0])
        grid = dimension_tweaks(model, few.images[index].float() / 255, label)  # [d offsets c h w]
        element = int(row_changes(grid).argmax())
        rows.append(grid[element])
        elements.append(element)
        shown.append({"class": few.classes[label], "test_image": index, "number": element + 1})
    if not rows:
        raise ArgumentError("images", "contain a correctly classified one", f"none among {len(few)}")
    return tweak_figure(torch.stack(rows).numpy(), OFFSETS, elements), {"rows": shown}


def draw_pairs(model: ImageClassifier, images: LabelledImages) -> Drawn:
    """Draw Figure 5: correct pairs, not hand-picked, and the most confident mistakes.

    Raises:
        ValueError: the images are not pairs.
    """
    if not isinstance(images, PairSet):
        raise ArgumentError("images", "be pairs", type(images).__name__)
    few = images.subset(torch.arange(min(len(images), LOOKED_AT)))
    evaluation = evaluate(model, few)
    picked = pick_examples(evaluation)
    names = {
        key: [pair_name(few.classes, both) for both in classes[picked]]
        for key, classes in (("labels", evaluation.labels), ("predictions", evaluation.predictions))
    }
    return pairs_figure(model, few, evaluation, picked), {"test_pairs": picked.tolist(), **names}


def _first(images: LabelledImages) -> ImageSet:
    return single_images(images, "figures 3 and 4").subset(torch.arange(min(len(images), LOOKED_AT)))


FIGURES = {
    "sabour2017-3": partial(_figure, 3, "reconstructions", "mnist-3-yes", draw_reconstructions),
    "sabour2017-4": partial(_figure, 4, "dimension tweaks", "mnist-3-yes", draw_tweaks),
    "sabour2017-5": partial(_figure, 5, "MultiMNIST", "multimnist-3-yes", draw_pairs),
}


def _claim(text: str, better: str, worse: str) -> Claim:
    errors = {spec.slug: spec.paper for spec in TABLE_1}
    return Claim(text=text, where="sabour2017-1", better=better, worse=worse, paper=(errors[better], errors[worse]))


CLAIMS = (
    _claim("On MNIST, three iterations of routing beat one (with reconstruction).", "mnist-3-yes", "mnist-1-yes"),
    _claim("On MNIST, reconstruction helps (with three iterations).", "mnist-3-yes", "mnist-3-no"),
    _claim("On MNIST, reconstruction helps with one iteration, too.", "mnist-1-yes", "mnist-1-no"),
    _claim("On MNIST, CapsNet beats the CNN.", "mnist-3-yes", "mnist-cnn"),
    _claim("On overlapping digits, three iterations of routing beat one.", "multimnist-3-yes", "multimnist-1-yes"),
    _claim("On overlapping digits, CapsNet beats the CNN.", "multimnist-3-yes", "multimnist-cnn"),
    Claim(
        text="Of networks that are equally good on plain digits, CapsNet has a lower error under affine maps than the "
        "CNN.",
        where="sabour2017-affnist",
        better="capsnet",
        worse="cnn",
        paper=(21.0, 34.0),
        on="affine",
    ),
)
