"""The papers, a folder each: published numbers, recipes, tables and figures; and the recipes for one's own images.

`kinds` has what papers share, and `league` compares all routings in one network: ours, of no paper.
"""

from capsella.papers import own_images
from capsella.papers.forslov2018 import recipes as _forslov2018
from capsella.papers.forslov2018 import space as _space_of_forslov2018
from capsella.papers.hahn2019 import recipes as _hahn2019
from capsella.papers.heinsen2019 import recipes as _heinsen2019
from capsella.papers.hinton2018 import recipes as _hinton2018
from capsella.papers.league import recipes as _league
from capsella.papers.mazzia2021 import recipes as _mazzia2021
from capsella.papers.ribeiro2020 import recipes as _ribeiro2020
from capsella.papers.sabour2017 import recipes as _sabour2017
from capsella.papers.tsai2020 import recipes as _tsai2020
from capsella.papers.zhao2021 import recipes as _zhao2021
from capsella.training.registry import (
    get_recipe,
    list_recipes,
    recipe_function,
    recipe_group,
    recipe_summary,
    recipe_text,
)
