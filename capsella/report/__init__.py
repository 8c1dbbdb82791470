"""Look inside a trained model: reconstructions, dimension tweaks, routing diagnostics, and a report of them all.

`page` and `base.html.jinja` are the frame of every report page, also of other packages.
"""

from capsella.report.figures import novelty_figure, risk_coverage_figure
from capsella.report.image_pictures import explain_images
from capsella.report.prose import Training, about_training, run_facts
from capsella.report.reconstruction import Reconstructions, explain_pairs, pairs_figure, pick_examples, reconstruct
from capsella.report.routing_views import routing_diagnostics
from capsella.report.run_page import write_report
from capsella.report.tweaks import OFFSETS, dimension_tweaks, largest_elements
from capsella.report.vote_distances import (
    VoteDistances,
    class_vote_distances,
    has_vote_distances,
    vote_distances,
    vote_distances_figure,
)
