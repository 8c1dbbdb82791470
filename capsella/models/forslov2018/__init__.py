"""The fourteen networks of Forslöv's thesis (2018)."""

from capsella.models.forslov2018 import capsnet, cnn, emnet  # noqa: F401  (importing them registers their models)
