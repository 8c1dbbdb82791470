"""Better hyper-parameters and networks: a search by any number of processes, on validation images alone."""

from capsella.search.candidate import Images
from capsella.search.defaults import around, default_space, schedules, with_own
from capsella.search.opened import Search
from capsella.search.options import SearchOptions
from capsella.search.outcome import Finalist, Outcome
from capsella.search.search import open_search, work
from capsella.search.space import Choice, Range, Space, register_space
