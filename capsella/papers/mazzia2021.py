"""Mazzia, Salvetti, Chiaberge 2021, "Efficient-CapsNet": the authors' recipe for MNIST, and our own recipes."""

from dataclasses import replace

from capsella.data import NamedData, PairData
from capsella.losses import LossOptions
from capsella.routing import SelfAttentionRouting
from capsella.training import AugmentOptions, ModelOptions, OptimizerOptions, Recipe
from capsella.training.registry import register_recipe


@register_recipe
def mazzia2021_mnist() -> Recipe:
    """Efficient-CapsNet on MNIST, as its authors trained it (§4 and their code).

    The learning rate decays by a factor of 0.97 per epoch (here smoothly), down to a tenth of its initial value. The
    authors train on all images and keep the epoch with the lowest test error; here validation images choose it.
    """
    options = {"routing": SelfAttentionRouting(), "reconstruction": True}
    return Recipe(
        model=ModelOptions("mazzia2021_efficient_capsnet", options),
        data=NamedData("mnist"),
        augment=AugmentOptions(margin_shift=True, rotation_sd=10.0, narrow=0.25, erase=4),
        optimizer=OptimizerOptions(learning_rate=5e-4, decay=0.97, decay_steps=3375, least_rate=5e-5),
        epochs=150,
        batch_size=16,
        channels_last=True,
    )


@register_recipe
def mazzia2021_multimnist() -> Recipe:
    """Efficient-CapsNet's network for pairs of digits (authors' code), trained our way on 3 million pairs.

    Both digits are reconstructed, each with half the loss weight of a single one.
    """
    mnist = mazzia2021_mnist()
    return replace(
        mnist.with_model(for_pairs=True),
        data=PairData(of="mnist", validation_pairs=10_000, test_pairs=10_000),
        augment=AugmentOptions(),
        loss=LossOptions(reconstruction="mean", reconstruction_weight=0.392 / 2),
        optimizer=OptimizerOptions(learning_rate=2e-3, schedule="cosine", warmup_steps=500, ema=0.999),
        epochs=50,
        epoch_images=60_000,
        batch_size=64,
        keep="last",
    )


@register_recipe
def efficient_capsnet_mnist() -> Recipe:
    """Efficient-CapsNet on MNIST in an hour, chosen on validation images; our recipe."""
    return replace(
        mazzia2021_mnist().with_model(reconstruction=False),
        augment=AugmentOptions(shift=2, rotation_sd=10.0),
        optimizer=OptimizerOptions(learning_rate=4e-3, schedule="cosine", warmup_steps=500, ema=0.999),
        epochs=20,
        batch_size=32,
        keep="last",
        precision="auto",
    )


@register_recipe
def efficient_capsnet_multimnist() -> Recipe:
    """Efficient-CapsNet on pairs of digits (Sabour et al. 2017, §6), trained as on MNIST; our recipe."""
    return replace(
        efficient_capsnet_mnist(),
        data=PairData(of="mnist", validation_pairs=10_000, test_pairs=10_000),
        augment=AugmentOptions(),
        epoch_images=60_000,
        precision="32-true",
    )
