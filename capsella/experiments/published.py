"""The published tables, by name."""

from collections.abc import Callable

from capsella.experiments import hinton2018
from capsella.experiments.tables import BudgetName, PublishedTable

TABLES: dict[str, Callable[[BudgetName], PublishedTable]] = {"hinton2018-table1": hinton2018.table_1}
