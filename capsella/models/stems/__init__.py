"""Stems: the part of a trained network that turns images into feature maps, taken over by another network."""

from capsella.models.stems import networks  # which registers them
from capsella.models.stems.description import StemDescription
from capsella.models.stems.find import find_stem
from capsella.models.stems.stem import Stem
