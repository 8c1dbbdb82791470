"""Cost, couplings and robustness of trained networks, for the routing benchmark."""

import copy
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from capsella.bench import execution_times, network_latencies
from capsella.data import ImageSet, batches, evenly, load_once, single_images
from capsella.environment import environment, machine
from capsella.errors import CapsellaError
from capsella.evaluation import AttackOptions, attack_networks
from capsella.files import read_json, write_json
from capsella.losses import total_loss
from capsella.models import CapsuleClassifier, ImageClassifier, count_parameters
from capsella.models.inference import inference
from capsella.routing import coupling_entropy, record
from capsella.training import Recipe, load_run

STEP_IMAGES = 32  # batch size of the training step that is measured
MOST_ROUTED = 200  # test images whose couplings are measured


def measure_network(run: Path, options: AttackOptions, attacked: int) -> dict[str, Any]:
    """Return parameters, memory, coupling entropy and accuracy under attack of a run's network.

    The run's folder keeps them in benchmark.json.

    Args:
        run: the run's folder.
        options: options of the attack, with one ε.
        attacked: number of test images to attack, evenly spaced in the set.

    Raises:
        CapsellaError: the folder holds an attack with other options.
    """
    path = run / "benchmark.json"
    wanted = json.loads(json.dumps({**asdict(options), "images": attacked}))
    if not path.exists():
        loaded = load_run(run)
        data = loaded.recipe.data
        model, images = loaded.model, single_images(load_once(data).test, "attacks")
        shown = images.subset(evenly(len(images), attacked))
        under_attack = attack_networks({"network": model}, shown, options)["network"]
        values = {
            "parameters": count_parameters(model),
            "step_memory_mib": step_memory_mib(model, loaded.recipe),
            "coupling_entropy": coupling_entropies(model, images.subset(evenly(len(images), MOST_ROUTED))),
            "attack": {"options": wanted, **under_attack.to_dict()},
        }
        write_json(path, values)
    measured: dict[str, Any] = read_json(path)
    if measured["attack"]["options"] != wanted:
        raise CapsellaError(f"{path} holds another attack; choose another folder, or move that file away")
    return measured


def step_memory_mib(model: ImageClassifier, recipe: Recipe) -> float:
    """Return the MiB that a training step on `STEP_IMAGES` random images saves for its backward pass.

    Weights do not count, nor does memory that kernels allocate and free within the step. Each storage counts once.
    """
    model = copy.deepcopy(model).train()  # the random images must not move the running statistics of the caller's
    kept: dict[int, int] = {}
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    generator = torch.Generator().manual_seed(0)
    images = torch.rand(STEP_IMAGES, model.channels, *model.image_size, generator=generator)
    labels = torch.arange(STEP_IMAGES) % len(model.classes)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        total_loss(model(images, labels), images, labels, recipe.loss)
    return sum(kept.values()) / 2**20


def coupling_entropies(model: ImageClassifier, images: ImageSet) -> list[float]:
    """Return the mean coupling entropy of every routed layer after its last iteration; 1 means uniform couplings."""
    if not isinstance(model, CapsuleClassifier):
        return []

    entropies, weights = [], []
    for batch in batches(images, STEP_IMAGES):
        with inference(model), record() as traces:
            model(batch.images)
        routed = [trace.couplings[-1].float() for trace in traces if trace.couplings[-1].shape[2] > 1]
        entropies.append([coupling_entropy(couplings).mean().item() for couplings in routed])
        weights.append(len(batch.images))
    return [float(np.average(layer, weights=weights)) for layer in zip(*entropies, strict=True)]


class Speed(NamedTuple):
    """Speed of a network. milliseconds: median for one image. per_second: images per second in training steps."""

    milliseconds: float
    per_second: float


def measure_speeds(path: Path, runs: Mapping[str, Path]) -> dict[str, Speed]:
    """Return the CPU speed of each network, all timed in turn; the file `path` caches them for this machine."""
    here = machine(environment())
    kept = read_json(path) if path.exists() else {}
    known: dict[str, list[float]] = kept["times"] if kept.get("machine") == here else {}
    if not set(runs) <= set(known):
        models = {slug: load_run(run).model for slug, run in runs.items()}
        calls = network_latencies(models)
        steps = {row.network: row for row in execution_times(models, (STEP_IMAGES,)) if row.backward}
        known = {slug: [calls[slug].p50, STEP_IMAGES / steps[slug].timing.median] for slug in runs}
        write_json(path, {"machine": here, "times": known})
    return {slug: Speed(*known[slug]) for slug in runs}
