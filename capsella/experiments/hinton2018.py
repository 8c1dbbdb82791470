"""The tables of Hinton, Sabour, Frosst 2018, "Matrix Capsules with EM Routing"."""

from dataclasses import replace
from typing import Any, Literal

from capsella.experiments.tables import PaperTable, Row
from capsella.training import Recipe, get_recipe

Budget = Literal["small", "full"]
RECIPE = "hinton2018-smallnorb-small"


def table_1(budget: Budget) -> PaperTable:
    """Table 1, the ablations on smallNORB, with the small network; and random couplings, which the paper has not.

    The small budget is a fixed, short training on few images: it compares the rows with each other, not with the paper.
    """
    recipe = get_recipe(RECIPE)
    if budget == "small":
        recipe = small(recipe)
    rows = (
        _row(recipe, 1, "matrix", "spread", True, 9.7),
        _row(recipe, 2, "matrix", "spread", True, 2.2),
        _row(recipe, 3, "matrix", "spread", True, 1.8),
        _row(recipe, 5, "matrix", "spread", True, 3.9),
        _row(recipe, 3, "vector", "spread", True, 2.9),
        _row(recipe, 3, "matrix", "spread", False, 2.6),
        _row(recipe, 3, "vector", "spread", False, 3.2),
        _row(recipe, 3, "matrix", "margin", True, 3.2),
        _row(recipe, 3, "matrix", "cross_entropy", True, 5.8),
    )
    columns = ("iterations", "pose", "loss", "coordinate addition")
    title = f"Hinton 2018, Table 1: test error on smallNORB (JPEG copy), small network, {budget} budget"
    return PaperTable(f"hinton2018-1-{budget}", title, columns, rows)


def small(recipe: Recipe) -> Recipe:
    """The same recipe on few images for few epochs."""
    return replace(recipe, data=replace(recipe.data, per_class=200), epochs=4)


def _row(
    recipe: Recipe,
    iterations: int,
    pose: str,
    loss: Literal["spread", "margin", "cross_entropy"],
    coordinates: bool,
    paper: float,
) -> Row:
    model: dict[str, Any] = {
        **recipe.model,
        "routing": replace(recipe.model["routing"], iterations=iterations),
        "pose": pose,
        "coordinate_addition": coordinates,
    }
    where = "yes" if coordinates else "no"
    return Row(
        slug=f"{iterations}-{pose}-{loss}-{where}",
        label=(str(iterations), pose, loss, where),
        recipe_name=RECIPE,
        recipe=replace(recipe, model=model, loss=replace(recipe.loss, name=loss)),
        paper=paper,
    )
