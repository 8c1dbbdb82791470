"""Papers in a night: their tables and figures trained by plan, and one page that says what they support."""

from capsella.reproduce.entries import Entry, ImageCounts, find_entries
from capsella.reproduce.jobs import Job, jobs_of
from capsella.reproduce.night import Night
from capsella.reproduce.page import write_page
from capsella.reproduce.plan import Plan, Planned, make_plan
from capsella.reproduce.speeds import Speeds
from capsella.reproduce.verdicts import Verdict, judge
