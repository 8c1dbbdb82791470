"""`capsella evaluate`."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from capsella.cli.laboratory import laboratory_images
from capsella.cli.runs import open_run
from capsella.cli.screen import console, show
from capsella.data import DataOptions, LabelledImages, NamedData, PairData, data_from, load_data, single_images
from capsella.data.laboratory import on_laboratory
from capsella.data.options import STEREO, WITH_VIEWPOINTS
from capsella.errors import CapsellaError, pluralize
from capsella.evaluation import (
    Evaluation,
    OODReport,
    OODSet,
    SelectiveClassification,
    evaluate,
    evaluate_ood,
    evaluate_selective,
    load_ood_set,
)
from capsella.files import write_json
from capsella.image_options import check_range
from capsella.models import ImageClassifier, MultiCrop
from capsella.report.terminal import evaluation_table, ood_table, selective_table
from capsella.training import Run, RunFolder, load_run_splits, load_splits
from capsella.uncertainty import FALSE_POSITIVE_RATE, check_false_positive_rate

OOD_PICTURE = Path("figures") / "ood.png"


@dataclass(frozen=True)
class Evaluate:
    """Test a run: a table to read, and the same numbers as JSON."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    split: Literal["test", "validation", "train"] | None = None
    """The images to test on; default: test. With --data: all images, unless a named source's own split is asked for."""
    data: str | None = None
    """Another laboratory: a folder with one sub-folder a class, an .npz file, or a named source, as affnist for a run
    on mnist40. All of its images are tested, also of a folder that is split, for the run has learned from none. Classes
    are matched by name; images of classes that the run does not know are left out. Those of more than 8 bits have the
    range of their own camera."""
    group: str | None = None
    """With --data of a folder: a regular expression whose one capture group, found in the path, names the patient or
    slide, as 'patient([0-9]+)'; of an .npz file: an array of integers. Intervals are then over patients."""
    range: tuple[float, float] | None = None
    """With --data: the values that become 0 and 255 in its files of more than 8 bits, as `0 4095` of a camera of 12
    bits; default: what the files state, or else the percentiles 0.1 and 99.9 of their values."""
    test_pairs: int | None = None
    """For a run on pairs: test on this many pairs. Fewer are the first of more."""
    test_per_class: int | Literal["all"] | None = None
    """Test on at most this many images of each class, or on all; default: the recipe's number. Not for pairs."""
    crops: bool = False
    """Average over thirteen cuts around the centre (Hinton et al. 2018), for networks that cut their images."""
    reject: bool = False
    """Also show the error of the images that are kept when the unsure ones are left out, and prediction sets. Draws
    figures/risk_coverage.png in the run's folder (of --data, its name in front). Needs a calibrated run, as every new
    one is."""
    ood: tuple[str, ...] = ()
    """Also measure how well these are told from the test images, at most 1,000 each: a source (capsella data list), a
    folder of images, noise, or half for test images with the right half painted over. Draws figures/ood.png in the
    run's folder."""
    ood_false_positive_rate: float = FALSE_POSITIVE_RATE
    """With --ood: false-positive rate of the OOD check."""
    skip_broken: bool = False
    """Leave out images that cannot be read, and list them; the run may have been trained without them."""
    batch_size: int = 128
    """Images at a time."""
    json: bool = False
    """Print JSON instead of the table."""
    out: Path | None = None
    """The JSON file; default: in the run's folder, named by split and what else is asked for, as test-crops.json."""

    def __post_init__(self) -> None:
        if self.split is not None and self.data is not None and Path(self.data).exists():
            raise ValueError(f"split: only for a named source; all images of {self.data} are tested, got {self.split}")
        if self.test_per_class is not None and self.split not in (None, "test"):
            raise ValueError(f"test_per_class: only for the split test, got {self.test_per_class} with {self.split}")
        if self.reject and (self.split not in (None, "test") or self.crops):
            raise ValueError(
                "reject: only for the split test, without crops: thresholds are those of validation images"
            )
        if self.ood and (self.split not in (None, "test") or self.crops or self.data is not None):
            raise ValueError("ood: only with the run's own test images, not with --data, --crops or another --split")
        if self.group is not None and (self.data is None or self.split is not None):
            raise ValueError("group: only for the images of --data; a run's own have the groups of its training")
        if self.range is not None and (self.data is None or self.split is not None):
            raise ValueError("range: only for the images of --data; a run's own have the range of its training")
        check_range(self.range)
        check_false_positive_rate(self.ood_false_positive_rate)

    @property
    def is_elsewhere(self) -> bool:
        """Whether something is asked for that only a laboratory's images have."""
        is_place = self.data is not None and Path(self.data).exists()
        return is_place or self.range is not None or self.group is not None

    @property
    def source(self) -> str:
        """Of images that are not the run's own, for the names of files; empty of the run's own."""
        place = None if self.data is None else Path(self.data).resolve()
        return "" if place is None else f"{place.name if place.is_dir() else place.stem}-"

    @property
    def risk_picture(self) -> Path:
        """What --reject draws."""
        return self.run / "figures" / f"{self.source}risk_coverage.png"

    @property
    def file(self) -> Path:
        """Where the numbers go."""
        source = self.source
        asked = "" if self.test_pairs is None else f"-pairs{self.test_pairs}"
        asked += "" if self.test_per_class is None else f"-per-class{self.test_per_class}"
        asked += ("-crops" if self.crops else "") + ("-reject" if self.reject else "")
        asked += ("-ood" if self.ood else "") + ("-group" if self.group is not None else "")
        asked += "" if self.range is None else f"-range{self.range[0]:g}-{self.range[1]:g}"
        return self.out or self.run / f"{source}{self.split or ('all' if source else 'test')}{asked}.json"


def _own(options: Evaluate, trained: Run) -> LabelledImages:
    """The run's own images, or those of the split of another source that is asked for."""
    data: DataOptions = trained.recipe.data
    if options.test_per_class is not None and data.is_paired:
        raise ValueError("test_per_class: not for a run on pairs; use --test-pairs")
    if options.data is not None:
        data = _of_source(data, options.data)
    if isinstance(data, PairData) and options.test_pairs is not None:
        data = replace(data, test_pairs=options.test_pairs)
    images = data.test_per_class if options.test_per_class is None else options.test_per_class
    asked = replace(data, test_per_class=None if images == "all" else images)
    files = RunFolder(trained.folder)
    splits = load_data(asked) if options.data is not None else load_run_splits(files, asked, skip_broken=True)
    if splits.broken:
        heading = f"left out {pluralize(len(splits.broken), 'broken image')}:"
        console(stderr=True).print(heading, *splits.broken, sep="\n  ", markup=False, soft_wrap=True)
    return splits.named()[options.split or "test"]


def _of_source(data: DataOptions, name: str) -> DataOptions:
    """The images of another source, read as the run's own are; what only the run's source has is left out."""
    if name == data.name or data.is_paired or data_from(name).is_paired:
        return data.on(name)
    other = on_laboratory(data, name)
    if isinstance(data, NamedData) and isinstance(other, NamedData):
        both = {"camera": STEREO, "viewpoints": WITH_VIEWPOINTS, "test_viewpoints": WITH_VIEWPOINTS}
        return other.replace(**{option: getattr(data, option) for option, names in both.items() if name in names})
    return other


def _images(options: Evaluate, trained: Run) -> tuple[LabelledImages, dict[str, Any]]:
    """The images to test on, and what the JSON says of another laboratory's."""
    images: LabelledImages
    about: dict[str, Any] = {}
    if options.data is None or options.split is not None:
        images = _own(options, trained)
    else:
        asked = options.test_per_class, options.group, options.range
        images, about, lines = laboratory_images(trained, options.data, *asked)
        console(stderr=options.json).print(*lines, sep="\n", markup=False, soft_wrap=True)
    if (found := _form(images)) != (wanted := _form(trained.model)):
        raise CapsellaError(f"data: must have the classes, size and channels of the run, {wanted}, got {found}")
    return images, about


def _form(images: LabelledImages | ImageClassifier) -> str:
    height, width = images.image_size
    return f"{', '.join(images.classes)} at {height}×{width}×{images.channels}"


def run(arguments: list[str]) -> None:
    """Evaluate and print."""
    options = tyro.cli(Evaluate, args=arguments, prog="capsella evaluate")
    trained = open_run(options.run)
    _check_file(options)
    _check_fitted(options, trained)
    if options.skip_broken:
        data = replace(trained.recipe.data, skip_broken=True)
        trained = replace(trained, recipe=replace(trained.recipe, data=data))
    if trained.recipe.data.is_paired and options.split is None and not options.is_elsewhere:
        options = replace(options, split="test")
    images, about = _images(options, trained)
    ood_sets = _ood_sets(trained, images, options.ood)  # a missing one stops before the evaluation
    model = MultiCrop(trained.model).eval() if options.crops else trained.model
    evaluation = evaluate(model, images, options.batch_size, progress=True)
    selective = _selective(trained, evaluation, options) if options.reject else None
    ood = _evaluate_ood(trained, images, ood_sets, options) if ood_sets else None
    values = evaluation.to_dict() | about | ({} if selective is None else {"selective": selective.to_dict()})
    values |= {} if ood is None else {"ood": ood.to_dict()}
    if options.json:
        print(json.dumps(values, indent=2))
        write_json(options.file, values)
        return
    show(evaluation_table(evaluation))
    if selective is not None:
        show(selective_table(selective))
        print(f"drawn in {options.risk_picture}")
    if ood is not None:
        show(ood_table(ood))
        print(f"drawn in {options.run / OOD_PICTURE}")
    write_json(options.file, values)
    print(f"written to {options.file}")


def _check_file(options: Evaluate) -> None:
    """No numbers of another laboratory are lost.

    Raises:
        CapsellaError: the default file holds some.
    """
    if options.data is not None and options.out is None and options.file.exists():
        try:
            laboratory = json.loads(options.file.read_text(encoding="utf-8")).get("laboratory", {})
            older, group = laboratory.get("data"), laboratory.get("group")
        except (ValueError, AttributeError) as error:
            raise CapsellaError(f"{options.file} is damaged: {error}; move it away, or give another --out") from error
        if older is not None and Path(older).resolve() != Path(options.data).resolve():
            raise CapsellaError(f"{options.file} holds the numbers of {older}; give another --out")
        if options.group not in (None, group):
            raise CapsellaError(f"{options.file} holds the numbers by group {group}; give another --out")


def _check_fitted(options: Evaluate, trained: Run) -> None:
    """What is asked for was fitted with the run.

    Raises:
        CapsellaError: it was not, or for another laboratory.
    """
    advice = "it is on pairs" if trained.recipe.data.is_paired else f"run capsella calibrate {options.run}"
    if trained.adapted is not None:
        advice = "it was adapted to another laboratory, and nothing can be fitted there"
    if options.reject and trained.model.calibration is None:
        raise CapsellaError(f"reject: needs calibrated probabilities, and {options.run} has none; {advice}")
    if options.ood and trained.model.ood_detector is None:
        raise CapsellaError(f"ood: {options.run} has no ood_detector.safetensors; {advice}")
    if options.reject and trained.adapted is not None:
        raise CapsellaError(
            f"reject: {options.run} was adapted to {trained.adapted['laboratory']}, and has no validation images there "
            "to take thresholds from"
        )


def _selective(trained: Run, evaluation: Evaluation, options: Evaluate) -> SelectiveClassification:
    """Take thresholds from the run's own validation images, whatever is tested; draw the picture."""
    from capsella.report.figures import risk_coverage_figure, write_png  # Matplotlib takes a second to import

    validation = evaluate(trained.model, load_splits(trained, skip_broken=True).validation, options.batch_size)
    selective = evaluate_selective(trained.model, validation, evaluation)
    write_png(risk_coverage_figure(selective), options.risk_picture)
    return selective


def _ood_sets(trained: Run, images: LabelledImages, names: Sequence[str]) -> list[OODSet]:
    if not names:
        return []
    test = single_images(images, "OOD images")
    return [load_ood_set(name, trained.model, test) for name in dict.fromkeys(names)]


def _evaluate_ood(trained: Run, images: LabelledImages, sets: list[OODSet], options: Evaluate) -> OODReport:
    """Compare the test images with OOD images; draw the picture."""
    from capsella.report.figures import ood_figure, write_png  # Matplotlib takes a second to import

    test = single_images(images, "OOD images")
    report = evaluate_ood(trained.model, test, sets, options.ood_false_positive_rate, options.batch_size)
    write_png(ood_figure(report), options.run / OOD_PICTURE)
    return report
