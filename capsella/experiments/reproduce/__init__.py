"""Reproduce papers: make their tables and figures one after another, and write one page of findings."""

from capsella.experiments.reproduce.entries import Entry, find_entries, missing_lines, plan_summary
from capsella.experiments.reproduce.findings import Finding, judge_claim
from capsella.experiments.reproduce.page import reproduce
