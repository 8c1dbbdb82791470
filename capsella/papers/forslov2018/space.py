"""What `capsella search` changes of an EM-NET, and of its rival without capsules: size, routing, training."""

from capsella.papers.forslov2018.recipes import EMNETS
from capsella.training import Recipe
from capsella.training.search_space import Choice, Range, Space, around, choice_with, register_space, schedules


@register_space("images-emnet", "emnet-cells", *(f"{network.replace('_', '-')}-modern" for network in EMNETS))
def em_networks(recipe: Recipe) -> Space:
    """The thesis (§10.7) asks for EM networks found by search; of 692 K parameters, 662 K are in two 9×9 kernels."""
    recipe = recipe.complete()
    options, routing = recipe.model.options, recipe.model.options["routing"]
    return Space(
        {
            "model.stem_width": choice_with(options["stem_width"], 8, 16, 32),
            "model.front_width": choice_with(options["front_width"], 24, 32, 48, 64),
            "model.caps_width": choice_with(options["caps_width"], 16, 32, 48),
            "model.kernel": choice_with(options["kernel"], 5, 7, 9),
            "model.types": choice_with(options["types"], 8, 16, 24, 32),
            "model.pose_elements": choice_with(options["pose_elements"], 9, 16),
            "model.batch_norm": Choice(False, True),
            "model.routing.iterations": Range(1, max(3, routing.iterations)),
            "model.routing.inverse_temperature": around(routing.inverse_temperature, 10.0),
            "model.routing.beta_a_scale": choice_with(routing.beta_a_scale, 500.0, 2500.0),
            "model.routing.variance_floor": around(routing.variance_floor, 10.0),
            **_training(recipe),
            "loss.name": choice_with(recipe.loss.name, "margin", "spread", "cross_entropy"),
        }
    )


@register_space("he2016-cells")
def residual_networks(recipe: Recipe) -> Space:
    """The residual network, from 78 K parameters on: searched as EM networks are, a comparison of the two is fair."""
    recipe = recipe.complete()
    options = recipe.model.options
    return Space(
        {
            "model.width": choice_with(options["width"], 8, 10, 12, 16, 24),
            "model.dropout": choice_with(options["dropout"], 0.0, 0.2),
            "model.norm": choice_with(options["norm"], "batch", "group"),
            **_training(recipe),
        }
    )


def _training(recipe: Recipe) -> dict[str, Range | Choice]:
    """What both kinds of networks may change alike. recipe: complete."""
    return {
        "optimizer.learning_rate": around(recipe.optimizer.learning_rate, 6.0),
        **schedules(recipe),
        "optimizer.ema": choice_with(recipe.optimizer.ema, 0.98, 0.995),
        "batch_size": choice_with(recipe.batch_size, 8, 16, 32),
        "augment.rotation": choice_with(recipe.augment.rotation, 0.0, 180.0),
        "augment.mixup": choice_with(recipe.augment.mixup, 0.0, 0.2),
    }
