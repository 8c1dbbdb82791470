"""The fourteen networks of Forslöv's thesis (2018)."""

from capsella.models.forslov2018 import capsnet, cnn, emnet  # which registers them
