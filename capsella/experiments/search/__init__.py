"""Search for better hyper-parameters and networks with Optuna, by validation images alone."""

from typing import TYPE_CHECKING

from capsella.lazy import lazy_imports

if TYPE_CHECKING:
    from capsella.experiments.search.options import SearchOptions
    from capsella.experiments.search.outcome import Finalist, Outcome
    from capsella.experiments.search.report import finish_search
    from capsella.experiments.search.space import Space, default_space, read_space
    from capsella.experiments.search.study import Search, open_search
    from capsella.experiments.search.trials import run_search
else:
    __getattr__ = lazy_imports(__name__, __file__)
