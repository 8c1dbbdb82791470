"""Capsule networks and CNNs on the same images of one's own, compared with what chance leaves of the difference.

`laboratories` trains in some laboratories and tests in another.
"""

from typing import TYPE_CHECKING

from capsella.lazy import lazy_imports

if TYPE_CHECKING:
    from capsella.compare.laboratories import Tested, TransferOptions, transfer
    from capsella.compare.options import ComparisonOptions
    from capsella.compare.plan import Plan, make_plan
    from capsella.compare.study import compare
else:
    __getattr__ = lazy_imports(__name__, __file__)
