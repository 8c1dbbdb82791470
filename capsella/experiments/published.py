"""The published tables and figures, by name."""

from collections.abc import Callable

from capsella.experiments import (
    hinton2018,
    hinton2018_attacks,
    hinton2018_figures,
    hinton2018_viewpoints,
    sabour2017,
    sabour2017_figures,
)
from capsella.experiments.figures import PublishedFigure
from capsella.experiments.forslov2018 import (
    accuracies,
    changed_images,
    curves,
    perturbed_capsules,
    times,
    trends,
    weights,
)
from capsella.experiments.tables import BudgetName, PublishedTable

TABLES: dict[str, Callable[[BudgetName], PublishedTable]] = {
    "hinton2018-1": hinton2018.table_1,
    "hinton2018-viewpoints": hinton2018_viewpoints.viewpoints,
    "hinton2018-attacks": hinton2018_attacks.attacks,
    "hinton2018-others": hinton2018.others,
    "sabour2017-1": sabour2017.table_1,
    "sabour2017-affnist": sabour2017.affnist,
    "sabour2017-others": sabour2017.others,
    "forslov2018-table2": weights.table_2,
    "forslov2018-table3": accuracies.table_3,
    "forslov2018-table4": changed_images.table_4,
    "forslov2018-table5": times.table_5,
}
FIGURES: dict[str, Callable[[BudgetName], PublishedFigure]] = {
    "hinton2018-2": hinton2018_figures.figure_2,
    "sabour2017-3": sabour2017_figures.figure_3,
    "sabour2017-4": sabour2017_figures.figure_4,
    "sabour2017-5": sabour2017_figures.figure_5,
    "forslov2018-31": trends.figure_31,
    "forslov2018-32": trends.figure_32,
    "forslov2018-33": curves.figure_33,
    "forslov2018-34": curves.figure_34,
    "forslov2018-35": perturbed_capsules.figure_35,
    "forslov2018-36": perturbed_capsules.figure_36,
    "forslov2018-37": curves.figure_37,
}
