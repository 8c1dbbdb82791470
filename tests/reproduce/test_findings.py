"""The rule by which numbers support a claim."""

import base64
import dataclasses
import json

import numpy as np
import pytest

from capsella.experiments import with_learning_rate
from capsella.experiments.reproduce import Entry, judge_claim
from capsella.experiments.reproduce.findings import is_still_falling, judge, was_still_learning
from capsella.papers.published import CLAIMS, FIGURES, REPEATED, STAND_INS, TABLES
from capsella.papers.table_types import Claim, ErrorRow, MatchedErrorTable, TestSet
from capsella.training.registry import get_recipe
from tests.reproduce.made import rows, table

IMAGES = 400
CLAIM = Claim(text="t", where="made2026-1", better="caps", worse="cnn", paper=(1.0, 2.0))
FLAT = [1.0, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1]
FALLING = [1.0 - 0.1 * n for n in range(9)]


def write_run(folder, slug, seed, errors, loss=FLAT, validation=1.0):
    """A finished run that has the first so many images wrong, and an error and loss on validation images."""
    run = folder / f"{slug}-seed{seed}"
    run.mkdir(parents=True)
    hits = np.arange(IMAGES) >= errors
    test = {"images": IMAGES, "correct": base64.b64encode(np.packbits(hits).tobytes()).decode()}
    recipe = rows("medium")[slug.partition("-")[0]].recipe.to_dict()
    best = {"validation_error": validation, "validation_loss": validation}
    training = {"kept_by": "validation_error", "best": best}
    result = {"seed": seed, "recipe": recipe, "test": test, "training": training}
    (run / "result.json").write_text(json.dumps(result, default=str))
    lines = ["epoch,train_loss,train_error", *(f"{n},{one},{100 * one}" for n, one in enumerate(loss, 1))]
    (run / "metrics.csv").write_text("\n".join(lines) + "\n")


def entry(folder, budget="medium"):
    return Entry("made2026-1", table(budget), budget, tuple(rows(budget).values()), 3, folder)


def verdict(folder, caps, cnn, budget="medium", **options):
    for slug, errors in (("caps", caps), ("cnn", cnn)):
        for seed, count in enumerate(errors):
            write_run(folder, slug, seed, count, **options)
    return judge_claim(CLAIM, entry(folder, budget))


def test_support_and_contradiction(tmp_path):
    good = verdict(tmp_path / "a", (20, 21, 22), (60, 61, 62))
    assert (good.answer, good.not_tested) == ("supported", "")
    assert good.errors == pytest.approx((5.25, 15.25))
    assert good.gain.estimate == pytest.approx(0.1)
    assert good.gain.low > 0
    assert verdict(tmp_path / "b", (60, 61, 62), (20, 21, 22)).answer == "contradicted"


def test_a_seed_that_diverged_is_not_tested(tmp_path):
    (tmp_path / "caps-seed2").mkdir()
    (tmp_path / "caps-seed2" / "diverged.json").write_text("{}")
    found = verdict(tmp_path, (20, 21), (60, 61, 62))
    assert found.answer == "not tested"


def test_each_side_is_compared_at_the_rate_that_validation_chooses(tmp_path):
    claim = dataclasses.replace(CLAIM, worse_rates=("cnn-rate1", "cnn-rate2", "cnn-rate3"), better_rates=("no-such",))
    tried = [with_learning_rate(rows("medium")["cnn"], rate) for rate in (1, 2)]
    of_both = dataclasses.replace(entry(tmp_path), rows=(*rows("medium").values(), *tried))
    verdict(tmp_path, (20, 21, 22), (60, 61, 62))
    assert "cnn-rate2" in judge_claim(claim, of_both).not_tested
    (tmp_path / "cnn-rate2-seed0").mkdir()
    (tmp_path / "cnn-rate2-seed0" / "diverged.json").write_text("{}")
    for seed in range(2):
        write_run(tmp_path, "cnn-rate1", seed, 21, validation=1.5)
    assert judge_claim(claim, of_both).rows == ("caps", "cnn")
    for seed in range(2):
        write_run(tmp_path / "better", "cnn-rate1", seed, 21, validation=0.5)
        (tmp_path / "better" / f"cnn-rate1-seed{seed}/result.json").rename(
            tmp_path / f"cnn-rate1-seed{seed}/result.json"
        )
    found = judge_claim(claim, of_both)
    assert (found.rows, found.answer) == (("caps", "cnn-rate1"), "no difference detected")
    (tmp_path / "cnn-seed0" / "diverged.json").write_text("{}")
    (tmp_path / "cnn-seed1" / "result.json").unlink()
    assert judge_claim(claim, of_both).rows == ("caps", "cnn-rate1")


def test_p_values_are_adjusted_for_all_claims_that_are_tested(tmp_path):
    verdict(tmp_path, (20, 26), (36, 44))
    claims = [CLAIM, dataclasses.replace(CLAIM, worse="no-such")]
    alone = judge_claim(CLAIM, entry(tmp_path))
    once, missing = judge([entry(tmp_path)], (), claims)
    assert (once.p_value, missing.answer) == (alone.p_value, "not tested")
    twice = judge([entry(tmp_path)], (), [CLAIM, *claims])
    assert twice[0].p_value == pytest.approx(2 * alone.p_value)


def test_a_missing_row_is_not_tested(tmp_path):
    found = verdict(tmp_path, (20, 21), ())
    assert (found.answer, found.gain) == ("not tested", None)
    assert judge_claim(CLAIM, None).answer == "not tested"
    unknown = dataclasses.replace(CLAIM, worse="no-such", worse_rates=("no-such-rate1",))  # as of images without it
    assert judge_claim(unknown, entry(tmp_path)).answer == "not tested"


def test_rows_far_from_convergence_are_not_tested(tmp_path):
    found = verdict(tmp_path / "a", (20, 21, 22), (60, 61, 62), loss=FALLING)
    assert found.answer == "not tested"
    small = verdict(tmp_path / "b", (20, 21, 22), (60, 61, 62), budget="small")
    assert small.answer == "not tested"


def test_a_stopped_table_is_judged_on_the_images_that_the_claim_is_about(tmp_path):
    verdict(tmp_path, (20, 21, 22), (60, 61, 62))
    for slug, errors in (("caps", 90), ("cnn", 30)):
        for seed in range(3):
            run = tmp_path / f"{slug}-seed{seed}"
            test = json.loads((run / "result.json").read_text())["test"]
            hits = np.arange(IMAGES) >= errors
            test["correct"] = base64.b64encode(np.packbits(hits).tobytes()).decode()
            (run / "novel.json").write_text(json.dumps(test))
    both = tuple(
        ErrorRow(slug=slug, recipe_name="bars", recipe=rows("medium")[slug].recipe, label=(slug,), paper=None)
        for slug in ("caps", "cnn")
    )
    on = (TestSet("test", "plain"), TestSet("novel", "novel", lambda data: data))
    table = MatchedErrorTable(title="t", columns=("network",), rows=both, test_sets=on)
    stopped = dataclasses.replace(entry(tmp_path), published=table, rows=both)
    assert judge_claim(CLAIM, stopped).answer == "supported"
    assert judge_claim(dataclasses.replace(CLAIM, on="novel"), stopped).answer == "contradicted"


@pytest.mark.parametrize("budget", ["small", "medium", "full"])
def test_the_papers_claims_are_of_rows_that_there_are(budget):
    for claim in CLAIMS:
        published = {**TABLES, **FIGURES}[claim.where](budget)
        assert claim.paper is None or claim.paper[0] < claim.paper[1], claim.text
        if not claim.where.startswith("forslov2018"):  # whose rows depend on the images at hand
            needed = claim.slugs if budget == "medium" else {claim.better, claim.worse}  # which alone has other rates
            assert needed <= {row.slug for row in published.rows_to_train()}
        if claim.on is not None:
            assert claim.on in [on.head for on in published.test_sets]
    assert set(REPEATED) | set(STAND_INS) <= {*TABLES, *FIGURES}


def test_the_thesiss_claims_are_of_rows_that_pbc_has():
    from capsella.papers.forslov2018.runs import ThesisItem

    runs = ThesisItem(title="", budget="medium", source="pbc-subset")
    slugs = {row.slug for row in runs.grid(runs.sets)}
    slugs |= {runs.with_decoder("capsnet1", decoder).slug for decoder in (True, False)}
    claims = [claim for claim in CLAIMS if claim.where.startswith("forslov2018")]
    assert claims
    assert {slug for claim in claims for slug in claim.slugs} <= slugs


@pytest.mark.parametrize(
    ("curve", "falls"),
    [
        (lambda e: 1.6 - 0.01 * e, True),  # a line: it had hardly begun
        (lambda e: np.exp(-e / 30), True),
        (lambda e: np.exp(-e / 5), False),
        (lambda e: 0.5 + 0 * e, False),
        (lambda e: np.where(e < 20, 1 - 0.045 * e, 0.1), False),
        (lambda e: 0.2 + 0.02 * e, False),  # a loss whose margin widens
    ],
)
def test_curves_that_still_fell_when_a_training_ended(curve, falls):
    epochs, random = np.arange(30), np.random.default_rng(0)
    seeds = [curve(epochs) + random.normal(0, 0.002, 30) for _ in range(3)]
    assert is_still_falling(seeds) is falls


def test_a_cosine_is_not_asked(tmp_path):
    lines = ["epoch,train_loss,train_error", *(f"{e},{1 - 0.1 * e},{50 - e}" for e in range(9))]
    (tmp_path / "metrics.csv").write_text("\n".join(lines) + "\n")
    assert was_still_learning(get_recipe("demo"), [tmp_path])
    assert not was_still_learning(get_recipe("images-efficient"), [tmp_path])
