"""Capsule networks and CNNs on the same images of one's own, compared with what chance leaves of the difference.

`laboratories` trains in some laboratories and tests in another.
"""

from capsella.compare.laboratories import Tested, TransferOptions, transfer
from capsella.compare.options import ComparisonOptions
from capsella.compare.plan import Plan, make_plan
from capsella.compare.study import compare
