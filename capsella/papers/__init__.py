"""Recipes, published numbers, tables and figures of the papers, and recipes for your own images.

`routing_benchmark` compares all routings in one network; it belongs to no paper.
"""

from capsella.papers import hahn2019 as _hahn2019
from capsella.papers import heinsen2019 as _heinsen2019
from capsella.papers import mazzia2021 as _mazzia2021
from capsella.papers import own_images
from capsella.papers import ribeiro2020 as _ribeiro2020
from capsella.papers import tsai2020 as _tsai2020
from capsella.papers import zhao2021 as _zhao2021
from capsella.papers.forslov2018 import recipes as _forslov2018
from capsella.papers.hinton2018 import recipes as _hinton2018
from capsella.papers.routing_benchmark import datasets as _routing_benchmark
from capsella.papers.sabour2017 import recipes as _sabour2017
from capsella.training.registry import (
    get_recipe,
    list_recipes,
    recipe_group,
    recipe_summary,
    recipe_text,
)
