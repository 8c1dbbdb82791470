"""The page as one HTML file: JSON values ("facts") and arrays for each run, and the scripts and styles."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from capsella.data import Splits, evenly
from capsella.evaluation import Evaluation
from capsella.models import CapsuleClassifier, ImageClassifier
from capsella.report.figures import printable
from capsella.report.prose import evaluation_warnings
from capsella.report.reconstructions import dial_names, dial_range
from capsella.uncertainty import FALSE_POSITIVE_RATE
from capsella.uncertainty.ood import KIND, LABORATORY, REASONS
from capsella.web.arrays import Arrays
from capsella.web.decoders import add_decoder, add_runtime, encoder_graph, why_no_dials
from capsella.web.images import (
    SURE,
    EncodedImages,
    add_changes,
    add_images,
    add_routing,
    changes_of,
    choose_images,
    decode_poses,
)
from capsella.web.modules import PAGE, joined_modules

TRAINING_SIDE = 10
MAX_TRAINING = 2000  # images; a tenth as many test images
# The margin loss pushes absent classes below m⁻ = 0.1 (Sabour et al. 2017, Eq. 4): lower means "not there".
SILENT_BELOW = 0.1
LENGTH_TOLERANCE = 1e-3  # if activations differ from the lengths of poses by less, on all images, they are lengths


def page_content(
    named: Mapping[str, CapsuleClassifier],
    seen: Sequence[EncodedImages],
    most: int,
    arrays: Arrays,
    *,
    live: bool = False,
    network: bool = False,
    cnn: tuple[str, ImageClassifier] | None = None,
) -> tuple[dict[str, Any], list[EncodedImages]]:
    """Return the page's facts about runs, and the images chosen for each; add the arrays to `arrays`.

    Runs with the same test images show the same ones, so that two views can follow each other: then "alike" is true.

    Args:
        named: the networks, by name of their run.
        seen: encoded test images of each run.
        most: maximum number of images to choose for each run.
        arrays: the collection to add to.
        live: there is a server, which encodes changed images on request.
        network: include the networks in the page, for the reader's own images.
        cnn: name and network of the CNN beside a single run.
    """
    alike = all(seen[0].shows_same(images) for images in seen)
    places = [choose_images(images, most) for images in seen]
    chosen = [images.take(places[0] if alike else own) for images, own in zip(seen, places, strict=True)]
    facts = []
    for number, ((name, model), images, shown) in enumerate(zip(named.items(), seen, chosen, strict=True)):
        beside = {"beside": cnn[0]} if cnn else {}
        facts.append({"name": name, **_run_content(model, images, shown, arrays, str(number)), **beside})
        if not live:
            pixels, predicted = shown.images.float() / 255, shown.predicted[:, 0]
            add_changes(model, pixels, predicted, arrays, str(number), cnn and cnn[1])
        if network:
            arrays.add(f"{number}/encoder", "u1", np.frombuffer(encoder_graph(model), np.uint8))
            facts[-1]["certainty"] = add_certainty(model, arrays, str(number))
    if network:
        add_runtime(arrays)
    return {"runs": facts, "alike": alike, "engine": network}, chosen


def _run_content(
    model: CapsuleClassifier, seen: EncodedImages, chosen: EncodedImages, arrays: Arrays, prefix: str
) -> dict[str, Any]:
    """Return the facts about a run and its `chosen` images; add its arrays, named `prefix`/…"""
    lengths, why_not = seen.poses.norm(dim=2), why_no_dials(model)
    labels = seen.labels[:, 0] if seen.labels.shape[1] == 1 else seen.labels
    arrays.add(f"{prefix}/axes", "f4", class_axes(seen).numpy())
    after = [] if why_not else add_decoder(model, arrays, prefix)
    return {
        "network": model.name,
        "classes": list(model.classes),
        "size": list(model.image_size),
        "channels": model.channels,
        "fit": model.fit,
        "sure": SURE,
        "silent": SILENT_BELOW,
        "lengthIsActivation": bool((lengths - seen.activations).abs().max() < LENGTH_TOLERANCE),
        "dials": {"names": dial_names(model, seen.poses.shape[2]), "most": dial_range(model)},
        "images": add_images(model, chosen, arrays, prefix),
        "decoder": None if why_not else {"after": after, "size": arrays.table[f"{prefix}/drawn"][1][2:]},
        "whyNoDials": why_not,
        "of": seen.test_size,
        "right": [int(seen.correct.sum()), len(seen.labels)],
        "warnings": evaluation_warnings(Evaluation(seen.activations, labels, model.classes)),
        "first": 0 if why_not else _liveliest(model, chosen),
        "changes": [asdict(change) for change in changes_of(chosen.images.shape[3])],
        "routed": add_routing(model, chosen, arrays, prefix),
    }


def _liveliest(model: CapsuleClassifier, chosen: EncodedImages) -> int:
    """Return the position of the correct image whose strongest dial changes the reconstruction most."""
    steps = dial_range(model) * torch.eye(chosen.poses.shape[2])
    changes = []
    for label, poses in zip(chosen.predicted[:, 0].tolist(), chosen.poses, strict=True):
        targets = torch.full((2 * len(steps),), label)
        drawn = decode_poses(model, targets, torch.cat([poses[label] + steps, poses[label] - steps]))
        changes.append(float((drawn[: len(steps)] - drawn[len(steps) :]).abs().flatten(1).mean(1).max()))
    return int((torch.tensor(changes) * chosen.correct).argmax())


def add_certainty(model: CapsuleClassifier, arrays: Arrays, prefix: str) -> dict[str, Any] | None:
    """Add the arrays and return the facts with which a page calibrates and OOD-checks a reader's own image.

    The OOD scores from the last feature maps and from the image turned upside down are left out: the page does not have
    these maps, and encodes an image only once. The threshold is that of all scores, so fewer images are flagged.

    Returns:
        None for a model without calibration. "threshold" is None without a detector.
    """
    if (calibration := model.calibration) is None:
        return None
    facts: dict[str, Any] = {"logits": calibration.logits, "temperature": calibration.temperature}
    facts |= {"prior": calibration.prior, "threshold": None, "kindThreshold": None, "reasons": {}}
    detector = model.ood_detector
    if detector is None or not detector.supports(FALSE_POSITIVE_RATE):
        return facts
    facts["threshold"] = detector.threshold(FALSE_POSITIVE_RATE)
    facts["kindThreshold"], facts["answers"] = detector.kind_threshold(FALSE_POSITIVE_RATE), [LABORATORY, KIND]
    names = sorted(set(detector.scores) & {"low_level", "poses", "reconstruction"})
    facts["fewer"] = len(names) < len(detector.scores)
    for name in names:
        facts["reasons"][name] = REASONS[name]
        arrays.add(f"{prefix}/validation_{name}", "f4", detector.distributions[name].numpy())
        if name in detector.gaussians:
            arrays.add(f"{prefix}/means_{name}", "f4", detector.gaussians[name].means.numpy())
            arrays.add(f"{prefix}/whitening_{name}", "f4", detector.gaussians[name].whitening.numpy())
    return facts


def class_axes(seen: EncodedImages) -> Float[Tensor, "classes 2 d"]:
    """Return for each class the main direction of its poses, and the direction in which they vary most around it.

    These are the first two right singular vectors of the poses, normalised but not centred, of the images predicted as
    the class, or of all images if fewer than two are. The first has the sign of the mean pose.
    """
    directions = torch.nn.functional.normalize(seen.poses, dim=2)
    predicted = seen.activations.argmax(1)
    axes = torch.zeros(directions.shape[1], 2, directions.shape[2])
    for label in range(directions.shape[1]):
        own = directions[predicted == label, label]
        of_class = own if len(own) > 1 else directions[:, label]
        Vh = torch.linalg.svd(of_class, full_matrices=False).Vh[:2]
        axes[label, : len(Vh)] = Vh
        if of_class.mean(0) @ axes[label, 0] < 0:
            axes[label, 0] *= -1
    return axes


def add_training(splits: Splits, arrays: Arrays) -> dict[str, Any]:
    """Add training and test images, grey and `TRAINING_SIDE` pixels a side, for the network that learns in the page."""
    for name, images, most in (("train", splits.train, MAX_TRAINING), ("test", splits.test, MAX_TRAINING // 10)):
        batch = images.take(evenly(len(images), most))
        grey = batch.images.float().mean(1, keepdim=True)
        small = torch.nn.functional.adaptive_avg_pool2d(grey, TRAINING_SIDE)[:, 0].round()
        arrays.add(f"training/{name}Images", "u1", small.numpy())
        arrays.add(f"training/{name}Labels", "u2", batch.labels.numpy())
    return {"side": TRAINING_SIDE, "classes": list(splits.classes)}


def page_title(names: Iterable[str]) -> str:
    """Return the title of the page."""
    return f"{' and '.join(names)}: inside a capsule network"


def page_html(title: str, facts: Mapping[str, Any], data: str) -> str:
    """Return the HTML of the page. facts: values for its JSON. data: the arrays in base64.

    A fact "server" permits the page to send requests to its server, "engine" to run WebAssembly in a worker thread.

    Raises:
        ValueError: a fact is not finite, so it cannot be written as JSON.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("capsella.web", "page"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    json_text = json.dumps(facts, allow_nan=False, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return environment.get_template("page.html.jinja").render(
        title=printable(title),
        style=(PAGE / "style.css").read_text(encoding="utf-8"),
        script=joined_modules(),
        facts=printable(json_text),
        server="server" in facts,
        engine=facts.get("engine", False),
        data=data,
    )
