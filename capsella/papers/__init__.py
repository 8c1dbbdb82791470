"""The papers: their published numbers, recipes, tables and figures."""

from capsella.papers import recipes  # which registers the recipes
from capsella.training.recipe import RECIPES, get_recipe

__all__ = ["RECIPES", "get_recipe"]
