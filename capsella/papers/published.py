"""The registry of published tables, figures and claims, and similar images for papers whose images are unavailable."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from capsella.data import source_names
from capsella.errors import ArgumentError, unknown_name
from capsella.papers import hahn2019, heinsen2019, ribeiro2020, tsai2020, zhao2021
from capsella.papers.budget import BudgetName
from capsella.papers.few_images import FewImages, pretrained_table
from capsella.papers.forslov2018 import figures as forslov2018_figures
from capsella.papers.forslov2018 import tables as forslov2018
from capsella.papers.hinton2018 import tables as hinton2018
from capsella.papers.overlapping_digits import overlapping_digits
from capsella.papers.routing_benchmark.lengths import TrainingLengths
from capsella.papers.routing_benchmark.table import RoutingBenchmark
from capsella.papers.sabour2017 import tables as sabour2017
from capsella.papers.table_types import Claim, Published
from capsella.papers.viewpoint_curves import ViewpointCurves

TABLES: dict[str, Callable[[BudgetName], Published]] = {
    "hinton2018-1": hinton2018.table_1,
    "hinton2018-iterations": hinton2018.iterations,
    "hinton2018-viewpoints": hinton2018.viewpoints,
    "hinton2018-attacks": hinton2018.attacks,
    "hinton2018-others": hinton2018.others,
    "sabour2017-1": sabour2017.table_1,
    "sabour2017-affnist": sabour2017.affnist,
    "sabour2017-others": sabour2017.others,
    "forslov2018-table2": forslov2018.table_2,
    "forslov2018-table3": forslov2018.table_3,
    "forslov2018-table4": forslov2018.table_4,
    "forslov2018-table5": forslov2018.table_5,
    "hahn2019-cifar10": hahn2019.cifar10,
    "hahn2019-viewpoints": hahn2019.viewpoints,
    "tsai2020-cifar10": tsai2020.cifar10,
    "zhao2021-errors": zhao2021.errors,
    "ribeiro2020": ribeiro2020.table,
    "heinsen2019": heinsen2019.table,
}
# Tables that are in no paper: `papers run` makes them; `papers reproduce` has nothing to compare them with.
OWN_TABLES: dict[str, Callable[[BudgetName], Published]] = {
    "routings": lambda budget: RoutingBenchmark(budget=budget),
    "training-lengths": lambda budget: TrainingLengths(budget=budget),
    "few-images": lambda budget: FewImages(budget=budget),
    "few-images-pretrained": pretrained_table,
    "viewpoint-curves": lambda budget: ViewpointCurves(budget=budget),
    "overlapping-digits": overlapping_digits,
    "sabour2017-rates": sabour2017.rates,
    "sabour2017-decoder": sabour2017.decoder_weights,
}
FIGURES: dict[str, Callable[[BudgetName], Published]] = {
    "hinton2018-2": hinton2018.figure_2,
    **sabour2017.FIGURES,
    **forslov2018_figures.FIGURES,
}
# Claims of the papers. Two rows of a table or figure above decide each.
CLAIMS: tuple[Claim, ...] = (*sabour2017.CLAIMS, *hinton2018.CLAIMS, *forslov2018.CLAIMS)
REPEATED = ("hinton2018-attacks",)  # tables without a claim whose rows are nevertheless trained with several seeds
# Similar images, by table or figure whose own images cannot be downloaded.
STAND_INS = {
    "hinton2018-1": "smallnorb-jpeg",
    "hinton2018-iterations": "smallnorb-jpeg",
    "hinton2018-viewpoints": "smallnorb-jpeg-poses",
    "hinton2018-attacks": "smallnorb-jpeg",
    "hinton2018-others": "cifar10-jpeg",
    "hinton2018-2": "smallnorb-jpeg",
    "ribeiro2020": "smallnorb-jpeg",
    "heinsen2019": "smallnorb-jpeg",
    "sabour2017-affnist": "affnist-like",
    "hahn2019-cifar10": "cifar10-jpeg",
    "tsai2020-cifar10": "cifar10-jpeg",
    "zhao2021-errors": "cifar10-jpeg,smallnorb-jpeg",
    "sabour2017-others": "cifar10-jpeg,smallnorb-jpeg",
    **{f"forslov2018-{name}": "pbc-subset" for name in ("table3", "table4", "31", "32", "33", "34", "35", "36", "37")},
}


def paper_of(name: str) -> str:
    """Return the paper's part of the name of a table or figure."""
    return name.partition("-")[0]


def find_published(name: str, budget: BudgetName, sources: str | None = None, rows: Sequence[str] = ()) -> Published:
    """Return a registered table or figure, optionally for other sources of images or with only some of its rows.

    Args:
        name: as `capsella papers list` prints it.
        budget: small, medium or full.
        sources: names of data sets, separated by commas.
        rows: labels of the rows to train; only for the tables of the routing benchmark.

    Raises:
        ArgumentError: an unknown name (suggests the nearest), or sources or rows that this table does not take.
    """
    registered = {**TABLES, **OWN_TABLES, **FIGURES}
    if name not in registered:
        raise unknown_name("name", name, registered)
    published = registered[name](budget)
    if sources is not None:
        for source in sources.split(","):
            if source not in source_names():
                raise unknown_name("data", source, source_names())
        published = published.on(sources)
    if rows:
        if not isinstance(published, RoutingBenchmark):
            raise ArgumentError("rows", "only be given for the tables routings and training-lengths", tuple(rows))
        return replace(published, only=tuple(rows))
    return published
