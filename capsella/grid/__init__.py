"""The only loop over runs: rows × seeds × learning rates, resumed where it was interrupted, with the time left."""

from capsella.grid.budget import Budget, BudgetName, Budgets
from capsella.grid.clock import Clock, duration
from capsella.grid.grid import (
    Grid,
    Results,
    Row,
    Searched,
    Validated,
    at_rate,
    check_finished,
    check_none_diverged,
    check_seeds,
    check_sources,
    finished_first,
    of_common_seeds,
    rate_at,
    tested_or_diverged,
)
from capsella.grid.run import (
    Hits,
    evaluated_again,
    evaluated_on,
    finish_run,
    hits_of,
    result_of,
    trained_run,
)
from capsella.grid.task import Task, each
from capsella.grid.unfinished import curves_tell, still_falls, still_learned
