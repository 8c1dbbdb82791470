"""Search for better hyper-parameters and networks with Optuna, by validation images alone."""

from typing import TYPE_CHECKING

from capsella.lazy import lazy_imports

if TYPE_CHECKING:
    from capsella.experiments.search.finalists import run_search
    from capsella.experiments.search.options import Objective, SearchOptions
    from capsella.experiments.search.outcome import Finalist, Outcome
    from capsella.experiments.search.study import Search, open_search
    from capsella.training.search_space import Choice, Range, Space, default_space, register_space
else:
    __getattr__ = lazy_imports(__name__, __file__)
