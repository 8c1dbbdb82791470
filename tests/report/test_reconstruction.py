import pytest
import torch

from capsella.evaluation import Evaluation
from capsella.report import pick_examples, reconstruct, reconstruction
from capsella.report.reconstruction import Reconstructions, share_nearest_own


def test_decodes_the_true_and_the_predicted_class(capsnet, image_set):
    images = image_set.images.float() / 255
    shown = reconstruct(capsnet, images, image_set.labels)
    with torch.no_grad():
        torch.testing.assert_close(shown.from_true, capsnet(images, image_set.labels).reconstruction)
        predicted = capsnet(images)
    torch.testing.assert_close(shown.from_predicted, predicted.reconstruction)
    assert shown.predictions.equal(predicted.activations.argmax(1))
    wrong = shown.predictions != shown.labels
    assert wrong.any()
    assert not wrong.all()
    torch.testing.assert_close(shown.from_true[~wrong], shown.from_predicted[~wrong])
    assert not shown.from_true[wrong].allclose(shown.from_predicted[wrong], atol=1e-6)


@pytest.mark.parametrize("batch_size", [5, 12, 64])
def test_share_of_reconstructions_nearest_to_their_own_image(capsnet, image_set, monkeypatch, batch_size):
    images, labels = image_set.images, image_set.labels
    drawn = images.float() / 255
    drawn[3], drawn[7] = drawn[4], 0.5 * drawn[7] + 0.5 * drawn[8] + 0.01 * (drawn[8] - drawn[7])
    drawn[9] = 0.6 * drawn[9] + 0.4 * drawn[1]  # still nearest to its own
    queue = list(drawn)

    def both(model, part, labels):
        shown = torch.stack([queue.pop(0) for _ in labels])
        return Reconstructions(part, shown, shown, labels, labels)

    monkeypatch.setattr(reconstruction, "reconstruct", both)
    assert share_nearest_own(capsnet, images, labels, batch_size) == pytest.approx(10 / 12)


def evaluation_of(predictions, labels, confidence):
    activations = torch.zeros(len(labels), 3)
    activations[torch.arange(len(labels)), torch.tensor(predictions)] = torch.tensor(confidence)
    return Evaluation(activations, torch.tensor(labels), ("a", "b", "c"))


def test_examples_go_round_the_classes_then_come_the_surest_mistakes():
    labels = [0, 0, 0, 2, 2, 1, 1, 0]
    wrong_at = {5: 0.4, 7: 0.9}
    predictions = [(label + 1) % 3 if index in wrong_at else label for index, label in enumerate(labels)]
    evaluation = evaluation_of(predictions, labels, [wrong_at.get(index, 0.8) for index in range(8)])
    assert pick_examples(evaluation, right=5, wrong=6).tolist() == [0, 6, 3, 1, 4, 7, 5]
    assert pick_examples(evaluation, right=2, wrong=1).tolist() == [0, 6, 7]
