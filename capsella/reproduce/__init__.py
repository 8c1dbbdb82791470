"""Reproductions of papers: their tables and figures trained by a plan, and one page with what they support."""

from capsella.reproduce.claims import ClaimVerdict, judge_claim
from capsella.reproduce.plan import (
    Entry,
    Measurements,
    Plan,
    Training,
    find_entries,
    make_plan,
    trainings_of,
)
from capsella.reproduce.run import Reproduction
