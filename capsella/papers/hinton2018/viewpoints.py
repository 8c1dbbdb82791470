"""§5.1 of Hinton, Sabour, Frosst 2018: viewpoints that a network has never been trained on."""

from dataclasses import replace

from capsella.data import DataOptions
from capsella.grid import Budget, BudgetName
from capsella.papers.hinton2018 import paper
from capsella.papers.hinton2018.tables import small_network
from capsella.papers.kinds.stopped_table import ErrorOn, StoppedRow, StoppedTable
from capsella.training import OptimizerOptions, Recipe
from capsella.training.registry import get_recipe

SMALL_STOP = 15.0
"""Per cent of error on familiar viewpoints at which the small budget stops: within reach of both networks."""
SMALL_RATE, SMALL_CNN_RATE = 3e-3, 3e-4
"""Learning rates of the small budget."""
SMALL = Budget(epochs=24, epoch_images=1500, batch_size=32, validation_per_class=20, test_per_class=200)
# At the paper's errors: minutes to an hour a network on two cores, and "not reached" where it does not get there.
NIGHT = Budget(epochs=120, epoch_images=2000, batch_size=32, validation_per_class=20, ema=0.99, precision="auto")
NO_AZIMUTHS = {
    "smallnorb-jpeg-poses": "No azimuth rows: the JPEG copy counts each toy's azimuths from a first view of its own. "
    "Its file of test images is the only one with poses: toys 2, 3 and 5 of each category train, toys 0 and 1 test."
}
NOTE = (
    "Each network stops at the first epoch with {stop} % error or less on the familiar viewpoints of the test's toys, "
    "as in the paper, and is then tested once on the novel ones. Each third row is the CNN's error less the capsules', "
    "seed by seed."
)


def viewpoints(budget: BudgetName) -> StoppedTable:
    """§5.1: trained on a third of the azimuths or elevations, tested on the others.

    Short of full, the small network is trained, with two iterations. The small budget stops both at 15 %.
    """
    rows = tuple(
        StoppedRow(
            slug=name.removeprefix("hinton2018-"),
            label=(by, network),
            recipe_name=name,
            recipe=get_recipe(name) if budget == "full" else _small(get_recipe(name), budget),
            paper=errors,
            impossible=NO_AZIMUTHS if by == "azimuth" else {},
        )
        for (by, network), errors in paper.VIEWPOINTS.items()
        for name in [f"hinton2018-{by}" + ("-cnn" if network == "CNN" else "")]
    )
    stops = " or ".join(dict.fromkeys(f"{row.recipe.stop_at_error:g}" for row in rows))
    limit = {"small": SMALL, "night": NIGHT, "full": None}[budget]
    limits = "" if limit is None else f"Small network, 2 iterations; the paper trains the large one. At most {limit}. "
    errors_on = (ErrorOn("test", "familiar"), ErrorOn("novel", "novel", _novel))
    return StoppedTable(
        "Hinton et al. 2018, section 5.1: novel viewpoints",
        limits + NOTE.format(stop=stops),
        ("viewpoints by", "network"),
        rows,
        errors_on,
    )


def _novel(data: DataOptions) -> DataOptions:
    return replace(data, test_viewpoints="novel")


def _small(recipe: Recipe, budget: BudgetName) -> Recipe:
    """Some minutes a network; learning rates that its training images allow, after a warm-up."""
    has_capsules = "routing" in recipe.model.options
    learning_rate = SMALL_RATE if has_capsules else SMALL_CNN_RATE
    limited = {"small": SMALL, "night": NIGHT}[budget]
    optimizer = OptimizerOptions(learning_rate=learning_rate, warmup_steps=100, gradient_clip=10.0)
    model = small_network(recipe.model) if has_capsules else recipe.model
    stop = SMALL_STOP if budget == "small" else recipe.stop_at_error
    return limited.limit(replace(recipe, model=model, optimizer=optimizer, stop_at_error=stop))
