"""Where a training stops at an error, so that networks compare at an equal one."""

from capsella.training.checkpoint import Row
from capsella.training.recipe import Recipe


def reaches(recipe: Recipe, row: Row) -> bool:
    """Whether an epoch's error is the one to stop at; never where the recipe names none."""
    stop = recipe.stop_at_error
    return stop is not None and row[f"{recipe.stop_on}_error"] <= stop


def stopped(recipe: Recipe, best: Row) -> dict[str, float | str | bool] | None:
    """For summary.json: where training stopped, or that it never got there; None where it was not to stop."""
    if recipe.stop_at_error is None:
        return None
    return {
        "at_error": recipe.stop_at_error,
        "on": recipe.stop_on,
        "reached": reaches(recipe, best),
        "epoch": best["epoch"],
        "error": best[f"{recipe.stop_on}_error"],
    }
