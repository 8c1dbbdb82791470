"""Reproduce papers: train the networks of their tables and figures by a plan, and write one page of findings."""

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
