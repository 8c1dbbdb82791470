"""How many images do I need? Test error by training images per class, for the contenders of `capsella compare`.

`python -m tools.learning_curve RUNS` takes the folder of `capsella papers run few-images`, fits a logistic regression
to frozen EfficientNet-Lite0 features (at 128 pixels) of the same draws of `pbc`, and writes
results/tables/learning-curve.json and results/figures/learning-curve.png. Features are computed once
for all draws. Regularisation is chosen by cross-validation on the training images; test images choose nothing.
"""

import argparse
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from capsella import create_model
from capsella.data import ImageSet, LoadedSource, NamedData, load_source, single_images
from capsella.evaluation import over_seeds
from capsella.files import read_json, write_json
from capsella.models.inference import inference
from capsella.papers.few_images import CAPSULES, FINER_RESNET
from capsella.papers.own_images import PRETRAINED
from capsella.report.figures import accuracy_figure, write_png
from tools.results import RESULTS

FROZEN, PIXELS, MOST_FOLDS = "frozen EfficientNet-Lite0", 128, 4
Errors = dict[tuple[int, str], list[float]]


def trained_errors(values: Mapping[str, Any]) -> tuple[Errors, dict[int, list[int]]]:
    """Return test errors in per cent by images per class and network, and the draws of each number of images."""
    rows = [row for row in values["rows"] if row["label"][1] in (CAPSULES, FINER_RESNET)]
    errors = {tuple(row["label"]): row["error_percent"] for row in rows}
    return errors, {row["label"][0]: [run["seed"] for run in row["runs"]] for row in rows}


class FrozenFeatures:
    """Features of a frozen backbone, computed once per image."""

    def __init__(self) -> None:
        self.model = create_model("backbone_linear", classes=8, channels=3, image_size=PIXELS, backbone=PRETRAINED)
        self.known: dict[bytes, Float[np.ndarray, " width"]] = {}

    def of(self, images: ImageSet) -> Float[np.ndarray, "n width"]:
        """Return the mean of each feature map over positions."""
        keys = [image.numpy().tobytes() for image in images.images]
        if new := [row for row, key in enumerate(keys) if key not in self.known]:
            self.known |= {
                keys[row]: values for row, values in zip(new, self._compute(images.subset(new)), strict=True)
            }
        return np.stack([self.known[key] for key in keys])

    def _compute(self, images: ImageSet) -> Float[np.ndarray, "n width"]:
        layers = self.model.feature_layers()
        with inference(self.model):
            means = [layers(part.float() / 255).mean((2, 3)) for part in images.images.split(64)]
        return torch.cat(means).numpy()


def frozen_error(source: LoadedSource, size: int, draw: int, features: FrozenFeatures) -> float:
    """Return the test error in per cent of a logistic regression on the images of one draw."""
    splits = source.split(_data().replace(per_class=size, validation_per_class=5, split_seed=draw))
    training, test = (single_images(part, "features") for part in (splits.train, splits.test))
    strengths, folds = {"C": 10.0 ** np.arange(-5, 1)}, min(MOST_FOLDS, size)
    search = GridSearchCV(LogisticRegression(max_iter=300), strengths, scoring="neg_log_loss", cv=folds)
    fitted = make_pipeline(StandardScaler(), search).fit(features.of(training), training.labels.numpy())
    return 100 * float((fitted.predict(features.of(test)) != test.labels.numpy()).mean())


def _data() -> NamedData:
    return NamedData("pbc", size=PIXELS, channels=3)


def main() -> None:
    """Fit what is not trained, and write table and figure."""
    parser = argparse.ArgumentParser(prog="python -m tools.learning_curve", description=__doc__)
    parser.add_argument("runs", type=Path)
    folder: Path = parser.parse_args().runs
    values = read_json(folder / f"{folder.resolve().name}.json")
    errors, draws = trained_errors(values)
    source, features = load_source(_data()), FrozenFeatures()
    for size, of_size in draws.items():
        errors[size, FROZEN] = [frozen_error(source, size, draw, features) for draw in of_size]
        print(size, over_seeds(errors[size, FROZEN]), flush=True)
    names, curves = (CAPSULES, FINER_RESNET, FROZEN), {}
    for name in names:
        points = [(size, errors[size, name]) for size in draws if (size, name) in errors]
        accuracy = np.array([100 - statistics.mean(of_size) for _, of_size in points])
        spread = np.array([statistics.stdev(of_size) if len(of_size) > 1 else 0.0 for _, of_size in points])
        curves[name] = np.stack(
            [np.array([size for size, _ in points]), accuracy, accuracy - spread, accuracy + spread]
        )
    figure = accuracy_figure({"pbc": ("training images per class", curves)})
    axes = figure.axes[0]
    axes.set(xscale="log", xticks=list(draws), ylim=(50, 101))
    axes.set_xticks(list(draws), map(str, draws))
    axes.minorticks_off()
    write_png(figure, RESULTS / "figures" / "learning-curve.png")
    rows = [[str(size), str(len(draws[size])), *(over_seeds(errors[size, name]) for name in names)] for size in draws]
    text = (
        f"`{values['command']}`, then `python -m tools.learning_curve`. Test error in per cent, mean and standard "
        f"deviation over draws of the training images. EfficientNet-Lite0 sees {PIXELS} pixels, the others 64."
    )
    heads = ["images per class", "draws", *names]
    tables = [{"caption": "", "labels": 2, "heads": heads, "rows": rows}]
    section = {"title": "How many images: error by images per class", "text": text, "tables": tables}
    write_json(RESULTS / "tables" / "learning-curve.json", section)


if __name__ == "__main__":
    main()
