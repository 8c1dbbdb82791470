"""Classify images like `capsella predict`, without capsella: python predict.py IMAGES OR FOLDERS > table.csv."""

import io
import json
import sys
from csv import DictWriter
from glob import glob
from pathlib import Path

import numpy as np
import onnxruntime

from capsella.data.image_file import ENDINGS, MOST_OUTSIDE, fit_image, open_image


def read_image(path: str | Path, about: dict) -> np.ndarray:
    """Read an image file into the network's format, [channels height width], 0 to 255; `about` is model.json."""
    try:
        image, outside = open_image(io.BytesIO(Path(path).read_bytes())).in_8_bits(about["value_range"])
    except Exception as error:  # decoders raise errors of every kind on damaged bytes
        raise ValueError(f"cannot be read as an image ({error})") from error
    if outside > MOST_OUTSIDE:
        low, high = about["value_range"]
        raise ValueError(f"{outside:.0%} of its values lie outside the learned range {low:g} to {high:g}")
    image = image.convert({1: "L", 3: "RGB"}[about["input"]["channels"]])
    size = about["input"]["height"], about["input"]["width"]
    if image.size != size[::-1]:
        image = fit_image(image, size, about["fit"])
    return np.asarray(image).reshape(*size, -1).transpose(2, 0, 1)


class Network:
    """The network of an exported folder; 0 `threads` use all cores."""

    def __init__(self, folder: Path = Path(__file__).parent, threads: int = 0) -> None:
        self.about, options = json.loads((folder / "model.json").read_bytes()), onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.session = onnxruntime.InferenceSession(folder / "model.onnx", options, ["CPUExecutionProvider"])

    def predict(self, path: str | Path) -> dict:
        """Return a row of the table. After training with balanced classes, another class may be more probable."""
        images, names = read_image(path, self.about)[None].astype(np.float32) / 255, self.session.get_outputs()
        found = {names[k].name: array[0] for k, array in enumerate(self.session.run(None, {"images": images}))}
        classes, best = self.about["classes"], int(found["activations"].argmax())
        row = {name: f"{found['activations'][k]:.6f}" for k, name in enumerate(classes)}
        row |= {"file": str(path), "class": classes[best]}
        row |= {"probability": f"{found['probabilities'][best]:.6f}"} if "probabilities" in found else {}
        if "ood_score" in found:
            score, limits = float(found["ood_score"]), self.about["thresholds"]
            row["in_distribution"] = str(score <= limits["ood_score"]).lower()
            if score > limits["ood_score"] and (kind := limits["another_kind"]) is not None:
                row["ood_reason"] = "another kind of image" if score > kind else "another laboratory"
        return row


def main(paths: list) -> None:
    """Print a table with a row per file."""
    sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape", newline="")
    net, files = Network(), []
    for path in map(Path, paths):  # glob skips hidden files, and follows links
        found = [path / p for p in glob("**/*", root_dir=path, recursive=True) if p.lower().endswith(ENDINGS)]
        files += sorted(found) if path.is_dir() else [path]
    ood = "in_distribution", "ood_reason"
    table = DictWriter(sys.stdout, ["file", "class", *net.about["classes"], "probability", *ood, "error"])
    table.writeheader()
    for file in files:
        try:
            table.writerow(net.predict(file))
        except Exception as error:  # decoders raise errors of every kind on damaged bytes
            table.writerow({"file": str(file), "error": str(error)})


if __name__ == "__main__":
    main(sys.argv[1:]) if len(sys.argv) > 1 else print(__doc__)
