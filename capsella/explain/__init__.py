"""Look inside a trained model: reconstructions, dimension tweaks, routing diagnostics, and a report of them all."""

from capsella.explain.diagnostics import routing_diagnostics
from capsella.explain.images import explain_images
from capsella.explain.perturbation import OFFSETS, dimension_tweaks
from capsella.explain.reconstruction import Reconstructions, pick_examples, reconstruct
from capsella.explain.report import write_report

__all__ = [
    "OFFSETS",
    "Reconstructions",
    "dimension_tweaks",
    "explain_images",
    "pick_examples",
    "reconstruct",
    "routing_diagnostics",
    "write_report",
]
