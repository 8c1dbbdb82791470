"""Do the poses of cells hold the picture? A ridge regression takes the decoder's place.

`python -m tools.pose_pictures RUN [--out FILE]` takes a capsule network trained on colour images of stained cells. From
its frozen poses, a ridge regression predicts the cell at 28×28 pixels, and the centre, area and mean colour of the
nucleus. It is fitted to training images, with a penalty per target from leave-one-out errors on them. Test images judge
it by R² (against the mean of the training images; 95 % bootstrap intervals over images) and by the share of drawings
that are nearer to their own image than to any other of 500, as `share_nearest_own` judges decoders.

Other codes show where the picture is lost: the predicted class alone; the primary capsules, and the feature maps that
they are computed from; and, as the best that a linear code of this size can do, the principal components of the
pictures themselves, as many as one pose has numbers, or all poses have. If drawings from the maps are near their own
images and drawings from poses are not, the capsules lose the picture. If drawings from poses are, and those of the
network's own decoder are not, the decoder does.
"""

import argparse
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from scipy.spatial.distance import cdist
from sklearn.decomposition import PCA
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch.nn.functional import interpolate

from capsella.data import ImageSet, single_images
from capsella.data.cell_crop import beyond_border, find_nucleus
from capsella.errors import CapsellaError
from capsella.evaluation.statistics import proportion_interval
from capsella.files import write_json
from capsella.models import ImageClassifier
from capsella.report.reconstructions import share_nearest_own
from capsella.training import load_splits
from capsella.training.trained import open_run
from tools.cell_attributes import Matrix, describe

SIDE, NUCLEUS_SIDE = 28, 96  # pixels of the pictures, and of the images in which nuclei are sought
COMPONENTS = 256
MOST_TRAINED, MOST_COMPARED = 3000, 500  # images
PENALTIES = np.logspace(-3, 8, 23)
RESAMPLES = 1000
TARGETS = {
    "picture": slice(0, -6),
    "nucleus centre": slice(-6, -4),
    "nucleus area": slice(-4, -3),
    "nucleus colour": slice(-3, None),
}


def targets_of(images: ImageSet) -> tuple[ImageSet, Matrix]:
    """Return the images in which a nucleus is found, and what to predict of each, between 0 and 1; see `TARGETS`."""
    rows, found = [], []
    for index, image in enumerate(images.images):
        small, large = (
            interpolate(image[None].float(), (side, side), mode="bilinear", antialias=True)[0]
            for side in (SIDE, NUCLEUS_SIDE)
        )
        pixels = large.round().byte().permute(1, 2, 0).numpy()
        with suppress(CapsellaError):
            nucleus = find_nucleus(pixels, beyond_border(pixels))
            place = nucleus.row / NUCLEUS_SIDE, nucleus.column / NUCLEUS_SIDE, nucleus.mask.mean()
            rows.append(np.concatenate([small.numpy().ravel() / 255, place, pixels[nucleus.mask].mean(0) / 255]))
            found.append(index)
    return images.subset(found), np.stack(rows)


def ridge(codes: Sequence[Matrix], trained: Matrix, components: int | None = None) -> Matrix:
    """Return the targets predicted from the second code, by a regression of the targets `trained` on the first.

    components: reduce the codes to this many principal components of the first, which are not scaled to equal variance;
    other codes are.
    """
    prepared = PCA(min(components, *codes[0].shape), random_state=0) if components else StandardScaler()
    regression = make_pipeline(prepared, RidgeCV(PENALTIES, alpha_per_target=True))
    predicted: Matrix = regression.fit(codes[0], trained).predict(codes[1])
    return predicted


def explained(predicted: Matrix, actual: Matrix, mean: np.ndarray) -> dict[str, float]:
    """Return R² of some columns together, against predicting `mean`, and its interval."""
    errors, deviations = (((actual - other) ** 2).sum(1) for other in (predicted, mean))
    count = len(actual)
    drawn = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), RESAMPLES)
    low, high = np.percentile(1 - (drawn @ errors) / (drawn @ deviations), (2.5, 97.5))
    return {"r2": float(1 - errors.sum() / deviations.sum()), "low": float(low), "high": float(high)}


def probe_pictures(model: ImageClassifier, train: ImageSet, test: ImageSet) -> dict[str, Any]:
    """Fit every code on the training images; return R² by target and the share of drawings nearest to their own."""
    (train, trained), (test, actual) = targets_of(train), targets_of(test)
    described = [
        describe(model, images) | {"pixels": rows[:, TARGETS["picture"]]}
        for images, rows in ((train, trained), (test, actual))
    ]
    poses = described[0]["poses"].shape[1]
    pose = poses // len(model.classes)
    codes: dict[str, tuple[list[str], int | None]] = {  # descriptions, and to how many components they are reduced
        "class alone": (["class"], None),
        f"winning pose ({pose} numbers)": (["class", "winning pose"], None),
        f"all poses ({poses} numbers)": (["class", "poses"], None),
        f"primary capsules, up to {COMPONENTS} components": (["primary capsules"], COMPONENTS),
        "map statistics": (["statistics"], None),
        f"maps, {COMPONENTS} components": (["maps"], COMPONENTS),
        f"pixels, {pose} components": (["pixels"], pose),
        f"pixels, {poses} components": (["pixels"], poses),
    }
    compared = np.random.default_rng(0).permutation(len(test))[:MOST_COMPARED]
    counts = {"train": len(train), "test": len(test), "compared": len(compared)}
    results: dict[str, Any] = {"images": counts, "codes": {}}
    for name, (parts, components) in codes.items():
        predicted = ridge([np.hstack([of_set[part] for part in parts]) for of_set in described], trained, components)
        drawings, pictures = (rows[compared, TARGETS["picture"]] for rows in (predicted, actual))
        own = cdist(drawings, pictures).argmin(1) == np.arange(len(compared))
        row: dict[str, Any] = {
            target: explained(predicted[:, columns], actual[:, columns], trained[:, columns].mean(0))
            for target, columns in TARGETS.items()
        }
        row["nearest_own"] = {"share": float(own.mean()), "interval": proportion_interval(own, None)}
        results["codes"][name] = row
        texts = [f"{target} {row[target]['r2']:.3f}" for target in TARGETS]
        print(f"{name}: {own.mean():.1%} nearest to their own; R²: {', '.join(texts)}", flush=True)
    if model.has_decoder:
        results["decoder_nearest_own"] = share_nearest_own(model, test.images[compared], test.labels[compared])
        print(f"the network's own decoder: {results['decoder_nearest_own']:.1%} nearest to their own")
    return results


def main() -> None:
    """Probe the network of a run on its own images, and write the numbers."""
    parser = argparse.ArgumentParser(prog="python -m tools.pose_pictures", description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    run = open_run(arguments.run)
    splits = load_splits(run)
    train, test = (single_images(images, "probes") for images in (splits.train, splits.test))
    chosen = np.random.default_rng(0).permutation(len(train))[:MOST_TRAINED]
    results = {"run": run.name, "data": splits.name} | probe_pictures(run.model, train.subset(chosen.tolist()), test)
    if arguments.out:
        write_json(arguments.out, results)


if __name__ == "__main__":
    main()
