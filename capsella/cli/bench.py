"""`capsella bench`: one image in every backend, or with --training, batches forward and backward."""

import contextlib
import copy
import dataclasses
import inspect
import json
import shlex
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro

from capsella.bench import BACKENDS, Subject, bench_networks, execution_times
from capsella.bench import Bench as Measured
from capsella.cli.screen import console, show
from capsella.data import ImageSet, load_data, single_images
from capsella.errors import check_argument, check_minimum, near_names
from capsella.files import write_json
from capsella.models import CapsuleClassifier, ImageClassifier, create_model, list_models, model_function
from capsella.training import load_run

DECODER = " + decoder"
Networks = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN|MODEL…")]


@dataclass(frozen=True)
class Bench:
    """Time one image (p50, p95, p99) and the best batch in every backend on the CPU.

    Runs are timed on their training images, registered networks on random ones.

    With --training: time batches forward, and forward with backward; see below.
    """

    networks: Networks
    """Folders of runs, registered networks, and patterns of these; '*' is every network."""
    backends: tuple[str, ...] = tuple(BACKENDS)
    """Backends to time; one that is not installed is named."""
    threads: int | None = None
    """Threads of each backend; default: as many as PyTorch takes."""
    calls: int = 200
    """Calls to time in each backend, at least 100."""
    seconds: float | None = None
    """Stop timing a backend after this many seconds; fewer than 100 calls have no p99."""
    json: bool = False
    """Print JSON instead of tables."""
    out: Path | None = None
    """Also write JSON to this file, after each network."""
    resume: bool = False
    """Keep the networks that the file holds already, and time the others."""


@dataclass(frozen=True)
class BenchTraining:
    """With --training: time batches forward, and forward with backward, in turn.

    Images are random. A run has its own size, channels and classes.
    """

    networks: Networks
    """Folders of runs, registered networks with fresh weights, and patterns of these."""
    batch: tuple[int, ...] = (1, 5)
    """Images in a batch; each number is timed."""
    size: int | None = None
    """Pixels a side; without it each network takes its published size."""
    channels: int | None = None
    """Channels of the images; default: as published."""
    classes: int | None = None
    """Number of classes; default: as published."""
    decoder: Literal["both", "with", "without"] = "both"
    """Time networks that can have a decoder with it, without it, or both."""
    base: str | None = None
    """The network to compare with, as the table names it; default: the first."""
    repeats: int = 7
    """Least number of calls to time."""
    seconds: float = 2.0
    """Go on timing for this many seconds, for each batch size and pass."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where to compute."""
    threads: int | None = None
    """Threads of the processor; default: as many as PyTorch takes."""
    out: Path | None = None
    """Also write JSON to this file."""


def run(arguments: list[str]) -> None:
    """Measure and print."""
    words = [word for word in arguments if word != "--training"]
    training = len(words) < len(arguments)
    if not training and {"-h", "--help"} & set(words):
        with contextlib.suppress(SystemExit):
            tyro.cli(Bench, args=["--help"], prog="capsella bench")
    if training or {"-h", "--help"} & set(words):
        _refuse_others(words, BenchTraining, Bench, "not with --training")
        _time_training(tyro.cli(BenchTraining, args=words, prog="capsella bench --training"))
    else:
        _refuse_others(words, Bench, BenchTraining, "only with --training")
        command = shlex.join(["capsella", "bench", *arguments])
        _time_backends(tyro.cli(Bench, args=words, prog="capsella bench"), command)


def _refuse_others(words: list[str], options: type, others: type, rule: str) -> None:
    """No flag that only the other way of timing has."""
    mine, theirs = ({field.name for field in dataclasses.fields(form)} for form in (options, others))
    for word in words:
        flag = word.partition("=")[0]
        if flag.startswith("--") and flag.removeprefix("--").removeprefix("no-") in theirs - mine:
            raise ValueError(f"{flag}: {rule}")


def _names(words: tuple[str, ...]) -> list[str]:
    """Every run and network once, in the order given."""
    names: list[str] = []
    for word in words:
        found = [word] if Path(word).is_dir() else list_models(word)
        if not found:
            hint = near_names(word, list_models(), "`capsella models` lists these")
            raise ValueError(f"networks: must be folders of runs or registered networks, got {word!r}; {hint}")
        names += found
    check_argument(bool(names), "name at least one run or network", networks=names)
    return list(dict.fromkeys(names))


def _time_backends(options: Bench, command: str) -> None:
    if options.resume and options.out is None:
        raise ValueError("resume: must come with --out, the file to go on with")
    names = _names(options.networks)
    check_minimum(1, threads=options.threads)
    threads = options.threads or torch.get_num_threads()
    asked = {"backends": options.backends, "threads": threads, "calls": options.calls, "most_seconds": options.seconds}
    values = bench_networks(
        {name: partial(_model_and_images, name) for name in names},
        asked,
        command=command,
        out=options.out,
        resume=options.resume,
        console=console(stderr=True) if len(names) > 1 else None,
        show=(lambda *_: None) if options.json else _print,
    )
    if options.json:
        print(json.dumps(values, indent=2))


def _print(result: Measured, images: str) -> None:
    show(result.table())
    print(f"timed on {images}; difference: the largest of any activation from PyTorch's")
    for name, reason in result.unavailable.items():
        print(f"{BACKENDS[name]}: not measured, {reason}")


def _model_and_images(name: str) -> Subject:
    if Path(name).is_dir():
        trained = load_run(name)
        images = single_images(load_data(trained.recipe.data).train, "benchmarks")
        return trained.model, images, f"training images of {trained.name}"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = create_model(name)
        pixels = torch.randint(256, (64, model.channels, *model.image_size), dtype=torch.uint8)
    return model, ImageSet(pixels, torch.zeros(64, dtype=torch.long), model.classes), "random images, fresh weights"


def _time_training(options: BenchTraining) -> None:
    names = _names(options.networks)
    check_minimum(1, threads=options.threads)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    asked = {"image_size": options.size, "channels": options.channels, "classes": options.classes}
    given = {key: value for key, value in asked.items() if value is not None}
    networks: dict[str, ImageClassifier] = {}
    for name in names:
        networks |= _variants(name, given, options.decoder)
    if not networks:
        raise ValueError(f"decoder: none of {', '.join(names)} can have a decoder, got 'with'")
    times = execution_times(
        networks,
        options.batch,
        base=options.base,
        repeats=options.repeats,
        seconds=options.seconds,
        device=options.device,
    )
    show(times.table())
    if options.out is not None:
        write_json(options.out, times.to_dict())
        print(f"written to {options.out}")


def _variants(name: str, given: dict[str, Any], decoder: str) -> dict[str, ImageClassifier]:
    """The network without and with its decoder, of those that are asked for; one that has no choice, as it is."""
    if Path(name).is_dir():
        if given:
            raise ValueError(f"size, channels, classes: only for registered networks, got them with the run {name}")
        return _of_run(name, decoder)
    if "reconstruction" not in inspect.signature(model_function(name)).parameters:
        return {} if decoder == "with" else {name: create_model(name, **given)}
    asked = {"without": {name: False}, "with": {name + DECODER: True}, "both": {name: False, name + DECODER: True}}
    return {key: create_model(name, **given, reconstruction=has) for key, has in asked[decoder].items()}


def _of_run(folder: str, decoder: str) -> dict[str, ImageClassifier]:
    """The same of a run."""
    model = load_run(folder).model
    if not isinstance(model, CapsuleClassifier) or not model.has_decoder:
        return {} if decoder == "with" else {folder: model}
    bare = copy.deepcopy(model)
    bare.decoder = None
    both: dict[str, ImageClassifier] = {folder: bare, folder + DECODER: model}
    return {name: one for name, one in both.items() if decoder in ("both", "with" if one is model else "without")}
