"""OOD detection and selective classification, measured on small networks."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from capsella.errors import ArgumentError, CapsellaError
from capsella.evaluation import Evaluation
from capsella.models import create_model
from capsella.report.prose import ood_notes
from capsella.report.terminal import ood_table
from capsella.uncertainty import (
    evaluate_ood,
    evaluate_selective,
    fit_calibration,
    fit_ood_detector,
    load_ood_set,
    threshold_at_coverage,
)
from capsella.uncertainty.ood_evaluation import paint_right_half
from capsella.uncertainty.selective import risk_coverage_curve

CLASSES = ("a", "b", "c")


def printed(table):
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(table)
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 80
    return text


def width(interval):
    return interval[1] - interval[0]


class TestOOD:
    @pytest.fixture(scope="class")
    def fitted(self, trained, digits):
        models = {name: trained[name] for name in ("cnn", "dynamic")}
        for model in models.values():
            fit_ood_detector(model, digits.train, digits.validation)
        yield models
        for model in models.values():
            model.ood_detector = None

    def test_halves_and_noise_are_told_from_digits(self, fitted, digits):
        for model in fitted.values():
            result = evaluate_ood(
                model, digits.test, {n: load_ood_set(n, model, digits.test) for n in ("noise", "half")}
            )
            noise, half = result.sets
            assert (noise.images, half.images, result.test.images, noise.flagged) == (30, 30, 30, 30)
            assert noise.scores[0].auc == 1
            assert (half.scores[0].score, half.scores[0].auc > 0.8) == ("combined", True)
            assert result.test.flagged <= 6
            names = [score.score for score in noise.scores]
            assert (names[:3], names[-2:]) == (["combined", "low_level", "features"], ["msp", "energy"])

    def test_images_of_the_same_kind_are_not(self, fitted, digits):
        model = fitted["cnn"]
        (same,) = evaluate_ood(model, digits.test, {"same": digits.test.images}).sets
        assert all(score.auc == pytest.approx(0.5) for score in same.scores)

    def test_copies_of_an_image_prove_no_more_than_the_image(self, fitted, digits):
        model, few = fitted["cnn"], digits.test
        which = torch.arange(len(few)).repeat(10)
        copied = replace(few, images=few.images[which], labels=few.labels[which], files=None, metadata={"group": which})
        sets = {"half": load_ood_set("half", model, few)}
        alone, grouped, ungrouped = (
            evaluate_ood(model, test, sets, 0.2) for test in (few, copied, replace(copied, metadata={}))
        )
        assert 0 < alone.test.flagged < 30
        assert grouped.test.flagged == ungrouped.test.flagged == 10 * alone.test.flagged
        assert width(grouped.test.flagged_interval_95) == pytest.approx(width(alone.test.flagged_interval_95), rel=0.1)
        assert width(ungrouped.test.flagged_interval_95) < 0.5 * width(alone.test.flagged_interval_95)
        for one, other, narrow in zip(*(result.sets[0].scores for result in (alone, grouped, ungrouped)), strict=True):
            assert other.auc == pytest.approx(one.auc)
            if 0.05 < one.auc < 0.95:
                assert width(other.interval_95) == pytest.approx(width(one.interval_95), rel=0.15)
                assert width(narrow.interval_95) < 0.95 * width(one.interval_95)

    def test_table_figure_and_json(self, fitted, digits):
        model = fitted["dynamic"]
        result = evaluate_ood(model, digits.test, {"noise": load_ood_set("noise", model, digits.test)}, 0.001)
        assert (result.has_threshold, result.test.flagged, result.sets[0].flagged) == (False, 0, 0)
        assert "2302" in ood_notes(result)[0]
        assert "poses" in printed(ood_table(result))
        values = json.loads(json.dumps(result.to_dict(), allow_nan=False))
        assert values["sets"][0]["scores"][0]["auc"] == 1

    def test_sources_and_folders_come_at_the_size_of_the_network(self, trained, digits, tmp_path):
        model = trained["cnn"]
        for number in range(3):
            Image.fromarray(np.full((9, 30, 3), 80 * number, np.uint8)).save(tmp_path / f"{number}.png")
        (tmp_path / "broken.png").write_bytes(b"no image")
        npz = tmp_path / "others.npz"
        np.savez(npz, images=np.zeros((6, 20, 20, 3), np.uint8), labels=np.arange(6) % 2)
        names = (str(tmp_path), str(npz), "digits")
        folder, file, source = (load_ood_set(name, model, digits.test) for name in names)
        assert [images.shape for images in (folder, file, source)] == [(n, 1, 12, 12) for n in (3, 6, 1000)]
        with pytest.raises(CapsellaError, match=r"^ood: "):
            load_ood_set("multimnist", model, digits.test)
        with pytest.raises(ArgumentError):
            evaluate_ood(trained["em"], digits.test, {"folder": folder})  # without a detector

    def test_halves_take_the_colour_of_the_border(self):
        images = torch.zeros(1, 3, 5, 6, dtype=torch.uint8)
        images[:, 1], images[:, :, 2, 2:4] = 7, 200
        left, right = paint_right_half(images)[0].split(3, 2)
        assert right.flatten(1).unique(dim=1).tolist() == [[0], [7], [0]]
        torch.testing.assert_close(left, images[0, ..., :3])


class TestSelective:
    def evaluation(self, number, seed):
        """Overconfident predictions: the more confident, the more often right."""
        generator = torch.Generator().manual_seed(seed)
        logits = 2 * torch.randn(number, 3, generator=generator)
        labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
        return Evaluation((3 * logits).softmax(1), labels, CLASSES)

    @pytest.fixture
    def calibrated(self):
        model = create_model("sabour2017_cnn", image_size=2, classes=CLASSES)
        validation = self.evaluation(1000, 0)
        model.calibration = fit_calibration(validation.activations, validation.labels)
        return model, validation

    def test_the_error_falls_and_thresholds_are_those_of_validation(self, calibrated):
        model, validation = calibrated
        test = self.evaluation(2000, 1)
        result = evaluate_selective(model, validation, test)
        confidence = model.calibration.probabilities(validation.activations).max(1).values.numpy()
        points = {point.coverage: point for point in result.points}
        assert (points[1.0].kept, points[1.0].errors, points[1.0].threshold) == (2000, test.errors, 0)
        exact = np.sort(confidence)[::-1][799]
        assert exact - 1e-6 <= points[0.8].threshold <= exact
        handed_on = float(f"{points[0.8].threshold:.6f}")  # what a reader passes on keeps the same images
        tested = model.calibration.probabilities(test.activations).max(1).values
        assert int((tested >= handed_on).sum()) == points[0.8].kept
        assert points[0.8].kept == pytest.approx(1600, abs=80)
        risks = [point.errors / point.kept for point in result.points]
        assert risks == sorted(risks, reverse=True)
        assert risks[-1] < risks[0] / 2
        assert result.ece < result.ece_before / 3
        other = evaluate_selective(model, validation, self.evaluation(50, 2))
        assert [point.threshold for point in other.points] == [point.threshold for point in result.points]

    def test_copies_of_an_image_prove_no_more_than_the_image(self, calibrated):
        few, which = self.evaluation(200, 1), torch.arange(200).repeat(10)
        copied = Evaluation(few.activations[which], few.labels[which], CLASSES, group=which)
        results = [evaluate_selective(*calibrated, of) for of in (few, copied, replace(copied, group=None))]
        for points in zip(*(result.points for result in results), strict=True):
            plain, grouped, ungrouped = (point.error_interval_95 for point in points)
            if 0 not in plain and 1 not in plain:
                assert width(grouped) == pytest.approx(width(plain), rel=0.1)
                assert width(ungrouped) < 0.5 * width(plain)

    def test_ties_are_kept_together(self):
        confidence, correct = np.array([0.9, 0.6, 0.6, 0.6]), np.array([True, False, True, True])
        np.testing.assert_allclose(risk_coverage_curve(confidence, correct), [[0.25, 1], [0, 0.25]])
        assert threshold_at_coverage(np.full(3, 0.5), 0.5) == 0.5
        assert threshold_at_coverage(np.full(10, 1 - 2.5e-13), 0.5) == 0.999999  # never above the image it keeps
        with pytest.raises(ArgumentError):
            threshold_at_coverage(confidence, 0)

    def test_what_cannot_be_measured(self, calibrated):
        model, validation = calibrated
        pairs = Evaluation(torch.rand(2, 3), torch.tensor([[0, 1], [1, 2]]), CLASSES)
        with pytest.raises(ArgumentError):
            evaluate_selective(model, validation, pairs)
        model.calibration = None
        with pytest.raises(ArgumentError):
            evaluate_selective(model, validation, validation)
