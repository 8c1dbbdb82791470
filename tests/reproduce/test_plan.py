"""What comes when, and what is left out."""

import dataclasses

from capsella.experiments import Row, Stopwatch
from capsella.reproduce import ImageCounts, Job, Night, Speeds, make_plan
from capsella.reproduce.plan import Plan
from capsella.training.loop import StepTime
from tests.papers.tiny import CAPSNET, QUIET
from tests.reproduce.made import registered, rows

SECONDS = {"slow": 3000.0, "quick": 600.0, "middle": 1200.0}


def jobs(folder, seeds=3):
    return [
        Job(folder, Row(slug=slug, cost=slug, recipe_name="demo", recipe=CAPSNET), seed)
        for slug in SECONDS
        for seed in range(seeds if slug != "middle" else 1)
    ]


def planned(folder, hours):
    return make_plan(jobs(folder), lambda job: SECONDS[job.row.slug], hours)


def names(runs):
    return [(one.job.row.slug, one.job.seed) for one in runs]


def test_every_row_has_its_first_seed_before_any_has_its_second(tmp_path):
    plan = planned(tmp_path, None)
    assert names(plan.runs) == [
        *(("quick", 0), ("middle", 0), ("slow", 0)),
        *(("quick", 1), ("slow", 1), ("quick", 2), ("slow", 2)),
    ]
    assert plan.left_out == ()
    assert plan.seconds == 3 * 3000 + 3 * 600 + 1200


def test_what_does_not_fit_is_left_out_and_quicker_runs_still_come(tmp_path):
    plan = planned(tmp_path, 1.0)  # 3,600 s
    assert names(plan.runs) == [("quick", 0), ("middle", 0), ("quick", 1), ("quick", 2)]
    assert names(plan.left_out) == [("slow", 0), ("slow", 1), ("slow", 2)]
    assert plan.seconds <= 3600
    assert planned(tmp_path, 0.01).runs == ()


def test_what_is_over_is_not_planned_and_what_was_begun_takes_less(tmp_path):
    over = tmp_path / "quick-seed0"
    over.mkdir()
    (over / "result.json").write_text("{}")
    gone = tmp_path / "quick-seed1"
    gone.mkdir()
    (gone / "diverged.json").write_text("{}")
    begun = tmp_path / "middle-seed0"
    begun.mkdir()
    (begun / "last.ckpt").write_bytes(b"")
    lines = ["epoch,step", *(f"{n},{n}" for n in range(1, CAPSNET.epochs + 1))]
    (begun / "metrics.csv").write_text("\n".join(lines) + "\n")
    plan = planned(tmp_path, None)
    assert plan.over == 2
    assert plan.runs[0].job.row.slug == "middle"
    assert plan.runs[0].seconds == 0  # all epochs are there; the test is not
    assert ("quick", 2) in names(plan.runs)


def test_a_network_is_timed_once_and_remembered(tmp_path):
    calls = []

    def measure(recipe):
        calls.append(recipe.model.name)
        return StepTime(step=2.0, image=0.5)

    with registered():
        recipes = [row.recipe for row in rows("small").values()]
        speeds = Speeds(tmp_path, QUIET, ImageCounts(tmp_path), measure)
        # 36 training images in batches of 12, 12 to validate in each of 3 epochs, 24 to test
        assert [speeds.seconds(recipe) for recipe in recipes] == [3 * (3 * 2.0 + 12 * 0.5) + 24 * 0.5] * 3
        assert len(calls) == 3
        again = Speeds(tmp_path, QUIET, ImageCounts(tmp_path), measure)
        assert again.seconds(recipes[0]) == 48.0
        assert len(calls) == 3
        (tmp_path / "speeds.json").write_text((tmp_path / "speeds.json").read_text().replace('"threads"', '"thread"'))
        Speeds(tmp_path, QUIET, ImageCounts(tmp_path), measure).seconds(recipes[0])
        assert len(calls) == 4  # another machine's times are not ours


def test_the_rest_of_a_run_is_expected_by_what_others_took(tmp_path):
    """Of half a run, half of what a finished seed took; and a half-done run is no estimate of whole ones."""
    begun = tmp_path / "slow-seed1"
    begun.mkdir()
    (begun / "last.ckpt").write_bytes(b"")
    (begun / "metrics.csv").write_text("epoch,step\n1,1\n")
    recipe = dataclasses.replace(CAPSNET, epochs=4)
    job = Job(tmp_path, Row(slug="slow", cost="slow", recipe_name="demo", recipe=recipe), 1)
    (begun_run,) = make_plan([job], lambda _: 3000.0, None).runs
    assert begun_run == (job, 3000.0, 0.75)
    assert begun_run.seconds == 2250

    night = Night(tmp_path, (), 3, QUIET, now=lambda: 0.0)
    clock = Stopwatch(estimates={"slow": begun_run.whole})
    clock.plan(["slow", "slow"])
    clock.finish("slow", 4000.0)
    late = Plan((begun_run,), (), 0, hours=2999 / 3600)
    assert list(night._due(late, clock)) == []
    assert len(list(night._due(dataclasses.replace(late, hours=3001 / 3600), clock))) == 1
