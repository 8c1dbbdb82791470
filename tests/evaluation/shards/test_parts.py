"""The parts of a long prediction, and how a worker answers for one, without a cluster."""

import os

import torch

from capsella.cluster import Desk
from capsella.evaluation import Certainty
from capsella.evaluation.shards.worker import Work, Worker


def cannot_load():
    raise RuntimeError("no memory")


def test_whatever_goes_wrong_in_a_worker_is_one_line_that_names_the_part(tmp_path):
    desk = Desk(os.getcwd(), {}, torch.get_num_threads())
    worker = Worker(Work(desk, cannot_load, str(tmp_path), 1, 1, Certainty(None)))
    answer = worker({"number": [3], "table": ["images.parquet"], "group": [0], "rows": [1]})
    assert answer["error"] == ["part-000003.parquet: RuntimeError: no memory"]
