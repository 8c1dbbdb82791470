"""Reproductions of papers: their tables and figures trained by a plan, and one page with what they support."""

from capsella.experiments.reproduce.findings import Finding, judge_claim
from capsella.experiments.reproduce.plan import (
    Entry,
    Measurements,
    Plan,
    Training,
    find_entries,
    left_out,
    make_plan,
    plan_summary,
    trainings_of,
)
from capsella.experiments.reproduce.run import Reproduction
