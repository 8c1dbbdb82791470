"""Capsule networks and CNNs on the same images of one's own, compared with what chance leaves of the difference."""

from capsella.experiments.compare.options import ComparisonOptions
from capsella.experiments.compare.plan import Plan, make_plan
from capsella.experiments.compare.study import compare

__all__ = ["ComparisonOptions", "Plan", "compare", "make_plan"]
