"""Figures, HTML reports and texts about trained models and the results of runs.

`pages` and `base.html.jinja` are the base of all HTML reports, including those of other packages. `prose` is the only
module that phrases results.
"""

from typing import TYPE_CHECKING

from capsella.lazy import lazy_imports

if TYPE_CHECKING:
    from capsella.report.figures import risk_coverage_figure
    from capsella.report.image_pictures import explain_images
    from capsella.report.prose import Training, about_training, evaluation_warnings, run_facts
    from capsella.report.reconstructions import (
        OFFSETS,
        Reconstructions,
        dimension_tweaks,
        largest_elements,
        pairs_figure,
        pick_examples,
        reconstruct,
    )
    from capsella.report.routing_views import VoteDistances, routed_layers, vote_distances_figure
    from capsella.report.run_page import write_report
else:
    __getattr__ = lazy_imports(__name__, __file__)
