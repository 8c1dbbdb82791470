"""Compare capsule networks, CNNs and a pretrained network on your own images, and recommend one.

`domains` trains on some domains and tests on another.
"""

from typing import TYPE_CHECKING

from capsella.lazy import lazy_imports

if TYPE_CHECKING:
    from capsella.experiments.compare.decision import Decision, decide
    from capsella.experiments.compare.domains import DomainOptions, compare_domains
    from capsella.experiments.compare.options import ComparisonOptions
    from capsella.experiments.compare.plan import Plan, make_plan
    from capsella.experiments.compare.report import write_report
    from capsella.experiments.compare.results import Comparison, compare
else:
    __getattr__ = lazy_imports(__name__, __file__)
