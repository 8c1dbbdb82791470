"""Compare capsule networks and CNNs on your own images, with an interval and a recommendation.

`domains` trains on some domains and tests on another.
"""

from typing import TYPE_CHECKING

from capsella.lazy import lazy_imports

if TYPE_CHECKING:
    from capsella.compare.domains import DomainOptions, DomainResult, compare_domains
    from capsella.compare.options import ComparisonOptions
    from capsella.compare.plan import Plan, make_plan
    from capsella.compare.results import Comparison
    from capsella.compare.study import compare, compare_folds, first_plan
    from capsella.compare.verdict import Verdict
else:
    __getattr__ = lazy_imports(__name__, __file__)
