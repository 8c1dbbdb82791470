"""The published tables and figures, by name."""

from collections.abc import Callable

from capsella.grid import BudgetName
from capsella.papers.forslov2018 import claims as forslov2018_claims
from capsella.papers.forslov2018 import figures_31_32, figures_33_34_37, figures_35_36, table2, table3, table4, table5
from capsella.papers.hahn2019 import tables as hahn2019
from capsella.papers.heinsen2019 import tables as heinsen2019
from capsella.papers.hinton2018 import attacks, viewpoints
from capsella.papers.hinton2018 import claims as hinton2018_claims
from capsella.papers.hinton2018 import figures as hinton2018_figures
from capsella.papers.hinton2018 import tables as hinton2018
from capsella.papers.kinds.claim import Claim
from capsella.papers.kinds.published import Published, PublishedTable
from capsella.papers.league.table import League
from capsella.papers.ribeiro2020 import tables as ribeiro2020
from capsella.papers.sabour2017 import claims as sabour2017_claims
from capsella.papers.sabour2017 import figures as sabour2017_figures
from capsella.papers.sabour2017 import tables as sabour2017
from capsella.papers.tsai2020 import tables as tsai2020
from capsella.papers.zhao2021 import tables as zhao2021

TABLES: dict[str, Callable[[BudgetName], PublishedTable]] = {
    "hinton2018-1": hinton2018.table_1,
    "hinton2018-viewpoints": viewpoints.viewpoints,
    "hinton2018-attacks": attacks.attacks,
    "hinton2018-others": hinton2018.others,
    "sabour2017-1": sabour2017.table_1,
    "sabour2017-affnist": sabour2017.affnist,
    "sabour2017-others": sabour2017.others,
    "forslov2018-table2": table2.table_2,
    "forslov2018-table3": table3.table_3,
    "forslov2018-table4": table4.table_4,
    "forslov2018-table5": table5.table_5,
    "hahn2019-cifar10": hahn2019.cifar10,
    "hahn2019-viewpoints": hahn2019.viewpoints,
    "tsai2020-cifar10": tsai2020.cifar10,
    "zhao2021-errors": zhao2021.errors,
    "ribeiro2020": ribeiro2020.table,
    "heinsen2019": heinsen2019.table,
}
OWN_TABLES: dict[str, Callable[[BudgetName], League]] = {"routings": League}
"""Tables of no paper: `capsella table` makes them, and `capsella reproduce` has nothing to hold them against."""
FIGURES: dict[str, Callable[[BudgetName], Published]] = {
    "hinton2018-2": hinton2018_figures.figure_2,
    "sabour2017-3": sabour2017_figures.figure_3,
    "sabour2017-4": sabour2017_figures.figure_4,
    "sabour2017-5": sabour2017_figures.figure_5,
    "forslov2018-31": figures_31_32.figure_31,
    "forslov2018-32": figures_31_32.figure_32,
    "forslov2018-33": figures_33_34_37.figure_33,
    "forslov2018-34": figures_33_34_37.figure_34,
    "forslov2018-35": figures_35_36.figure_35,
    "forslov2018-36": figures_35_36.figure_36,
    "forslov2018-37": figures_33_34_37.figure_37,
}
CLAIMS: tuple[Claim, ...] = (*sabour2017_claims.CLAIMS, *hinton2018_claims.CLAIMS, *forslov2018_claims.CLAIMS)
"""What the papers claim, each decided by two rows of a table or figure above."""
REPEATED = ("hinton2018-attacks",)
"""Tables without a claim whose rows are trained with several seeds all the same."""
STAND_INS = {
    "hinton2018-1": "smallnorb-jpeg",
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
    **{f"forslov2018-{name}": "pbc" for name in ("table3", "table4", "31", "32", "33", "34", "35", "36", "37")},
}
"""By the name of a table or figure: images like the papers' that can be had where those cannot."""


def paper_of(name: str) -> str:
    """The paper that a registered table or figure is of.

    >>> paper_of("sabour2017-1"), paper_of("ribeiro2020")
    ('sabour2017', 'ribeiro2020')
    """
    return name.partition("-")[0]
