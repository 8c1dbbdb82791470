"""The learning curve: the same draws for all contenders, and features that are computed once."""

from capsella.data import NamedData, load_source
from tools import learning_curve


def test_frozen_features_learn_from_each_draw_and_are_computed_once(monkeypatch):
    computed = []

    class Pixels(learning_curve.FrozenFeatures):
        def _compute(self, images):
            computed.append(len(images))
            return images.images.flatten(1).numpy().astype(float)

    monkeypatch.setattr(learning_curve, "_data", lambda: NamedData("digits", size=8, channels=1))
    source, features = load_source(learning_curve._data()), Pixels()
    first = learning_curve.frozen_error(source, 5, 0, features)
    images = sum(computed)
    assert learning_curve.frozen_error(source, 5, 0, features) == first
    assert sum(computed) == images
    assert learning_curve.frozen_error(source, 20, 0, features) < first < 50


def test_errors_of_trained_networks_come_with_their_draws():
    def row(size, name, errors):
        return {"label": [size, name], "error_percent": errors, "runs": [{"seed": n} for n in range(len(errors))]}

    values = {
        "rows": [
            row(5, "Efficient-CapsNet", [9.0, 8.0]),
            row(5, "uniform couplings", [7.0]),
            row(5, "ResNet, halved once", [6.0, 5.0]),
        ]
    }
    errors, draws = learning_curve.trained_errors(values)
    assert errors == {(5, "Efficient-CapsNet"): [9.0, 8.0], (5, "ResNet, halved once"): [6.0, 5.0]}
    assert draws == {5: [0, 1]}
