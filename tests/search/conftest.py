"""The study that several files read."""

import pytest

from capsella.search import work
from tests.search.made import opened


@pytest.fixture(scope="session")
def searched(tmp_path_factory):
    search = opened(tmp_path_factory.mktemp("study"))
    return search, work(search)
