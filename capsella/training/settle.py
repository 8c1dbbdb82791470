"""What "auto" is on a machine, and for a run that has begun: then it stays what it was.

For `balance`, which depends on the images, see `capsella.training.balance`.
"""

from dataclasses import replace

from capsella import _native
from capsella.routing import EMRouting
from capsella.training.devices import set_threads
from capsella.training.options import Machine
from capsella.training.precision import PrecisionChoice, choose_precision, kind_of
from capsella.training.recipe import Recipe


def settle(recipe: Recipe, machine: Machine) -> tuple[Recipe, PrecisionChoice | None, str | None]:
    """The recipe with the precision and the votes that "auto" is on this machine, and why each is."""
    recipe, precision = settle_precision(recipe, machine)
    recipe, votes = settle_votes(recipe, machine)
    return recipe, precision, votes


def settle_precision(recipe: Recipe, machine: Machine) -> tuple[Recipe, PrecisionChoice | None]:
    """The recipe with the precision that "auto" is on this machine, and why; any other recipe as it is."""
    if recipe.precision != "auto":
        return recipe, None
    set_threads(machine)
    choice = choose_precision(machine.accelerator)
    return replace(recipe, precision=choice.precision), choice


def settle_votes(recipe: Recipe, machine: Machine) -> tuple[Recipe, str | None]:
    """The recipe with bfloat16 votes, and why, where it trains in bf16-mixed on a processor that gains by them.

    Any other recipe as it is. Only where its EM routing leaves the choice open (`votes="auto"`). The precision must be
    settled.
    """
    routing = recipe.model.complete().options.get("routing")
    if not isinstance(routing, EMRouting) or routing.votes != "auto" or routing.backend not in ("auto", "native"):
        return recipe, None
    if recipe.precision != "bf16-mixed":
        return recipe, None
    if kind_of(machine.accelerator) != "cpu" or not _native.multiplies_bfloat16():
        return recipe, None
    why = "auto → bfloat16: bf16-mixed, and this processor multiplies it"
    return recipe.with_model(routing=replace(routing, votes="bfloat16")), why


def as_begun(recipe: Recipe, begun: Recipe) -> Recipe:
    """The recipe with what it became in a run that has begun, wherever it leaves that open.

    That is precision, votes and balance where they are "auto", and the range and the scale of the images where the
    recipe has none.
    """
    if recipe.precision == "auto":
        recipe = replace(recipe, precision=begun.precision)
    if recipe.balance == "auto":
        recipe = replace(recipe, balance=begun.balance)
    mine, theirs = (one.complete().model.options.get("routing") for one in (recipe, begun))
    if recipe.precision == "bf16-mixed" and isinstance(mine, EMRouting) and isinstance(theirs, EMRouting):
        votes = theirs.votes if mine.votes == "auto" else mine.votes
        recipe = recipe.with_model(routing=replace(mine, votes=votes))
    if recipe.data.cells != begun.data.cells:
        return recipe  # another one, which has no use for what was found
    return recipe.with_found(begun.data.value_range, begun.data.cell_radius)
