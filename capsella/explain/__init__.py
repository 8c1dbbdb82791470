"""Look inside a trained model: reconstructions, dimension tweaks, routing diagnostics, and a report of them all.

`page` and `base.html.jinja` are the frame of every report page, also of other packages.
"""

from capsella.explain.images import explain_images
from capsella.explain.novelty_curves import novelty_figure
from capsella.explain.reconstruction import Reconstructions, explain_pairs, pairs_figure, pick_examples, reconstruct
from capsella.explain.report import write_report
from capsella.explain.risk_coverage import risk_coverage_figure
from capsella.explain.routing_views import routing_diagnostics
from capsella.explain.tweaks import OFFSETS, dimension_tweaks, largest_elements
from capsella.explain.vote_distances import (
    VoteDistances,
    class_vote_distances,
    has_vote_distances,
    vote_distances,
    vote_distances_figure,
)
from capsella.explain.words import Training, about_training, run_facts
