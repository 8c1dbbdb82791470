"""The published tables, by name."""

from collections.abc import Callable

from capsella.experiments import hinton2018, sabour2017
from capsella.experiments.tables import BudgetName, PublishedTable

TABLES: dict[str, Callable[[BudgetName], PublishedTable]] = {
    "hinton2018-table1": hinton2018.table_1,
    "sabour2017-1": sabour2017.table_1,
    "sabour2017-affnist": sabour2017.affnist,
    "sabour2017-others": sabour2017.others,
}
