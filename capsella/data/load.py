"""`load_data`: from options of any kind to train, validation and test images."""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import count, islice
from pathlib import Path

import torch

from capsella.data.domains import common_classes, copies_among, match_classes, options_of_domain
from capsella.data.download import data_root
from capsella.data.images import ImageSet, join
from capsella.data.listing import FolderListing
from capsella.data.loaded_source import LoadedSource, load_source
from capsella.data.options import DataOptions, DomainData, PairData
from capsella.data.pairs import PairSet
from capsella.data.splits import SPLIT_NAMES, LabelledImages, Splits, single_images
from capsella.errors import CapsellaError

PAIRS_PER_IMAGE = 1000  # Sabour et al. 2017, §6: 1,000 pairs per digit, of 60,000 to train and 10,000 to test


def load_data(options: DataOptions, listing: FolderListing | None = None) -> Splits:
    """Load images and split them.

    The test images are held out first, then the validation images from the rest, unless the source has them. Then
    `per_class`, `validation_per_class` and `test_per_class` limit each split, and `first_classes` selects classes.
    Pairs are made last, of two images of the same split.

    Args:
        options: which images, and how.
        listing: the files of a folder, if it was listed already, e.g. by `inspect_folder`.

    Raises:
        ValueError: no such public data set, or fewer classes than `first_classes`; pairs of images in colour, or
            of fewer than three classes.
        CapsellaError: the images are missing, cannot be read, or cannot be split as asked.
    """
    if isinstance(options, PairData):
        return _pairs(load_data(options.single()), options)
    if isinstance(options, DomainData):
        return _domains(options)
    return load_source(options, listing=listing).split(options)


def load_once(options: DataOptions) -> Splits:
    """Load like `load_data`, and cache the last public data set. Your own images, which may change, are read anew."""
    return load_data(options) if options.is_own else _loaded(options, data_root())


@lru_cache(maxsize=1)
def _loaded(options: DataOptions, root: Path) -> Splits:
    # `root` is only part of the cache's key.
    return load_data(options)


def _domains(options: DomainData) -> Splits:
    """Split each domain separately and join the splits; the metadata `domain` is the index of an image's domain.

    If any domain has groups, each image of a domain without groups is a group of its own. The result has no range of
    values, because a range belongs to one camera.
    """
    domains = [options_of_domain(options, domain) for domain in options.domains]
    sources = [load_source(domain) for domain in domains]
    whole = [loaded.images for loaded in sources]
    classes = options.classes or common_classes(whole, options.domains)
    alone = count(-1, -1) if any("group" in images.metadata for images in whole) else None
    splits = []
    for number, (loaded, domain) in enumerate(zip(sources, domains, strict=True)):
        split = _of_classes(loaded, classes).split(domain)
        splits.append({name: _numbered(part, number, len(domains), alone) for name, part in split.named().items()})
    train, validation, test = (join([split[name] for split in splits]) for name in SPLIT_NAMES)
    notes = [note for loaded in sources for note in loaded.notes]
    if copies := len(copies_among(test, join([train, validation]))):
        notes.append(f"WARNING: {copies} of {len(test)} test images are copies of another domain's training images")
    return Splits(
        ", ".join(loaded.source.name for loaded in sources),
        train,
        validation,
        test,
        broken=tuple(error for loaded in sources for error in loaded.broken),
        notes=tuple(notes),
    )


def _of_classes(loaded: LoadedSource, classes: tuple[str, ...]) -> LoadedSource:
    """Return the source with only the images of `classes`; their labels become indices into it."""
    sets = {split: match_classes(images, classes) for split, images in loaded.source.named().items()}
    fingerprints = loaded.source.fingerprints
    if fingerprints is not None:
        fingerprints = fingerprints[torch.cat([matched.kept for matched in sets.values()]).numpy()]
    images = {split: matched.images for split, matched in sets.items()}
    source = replace(loaded.source, fingerprints=fingerprints, **images)  # type: ignore[arg-type]
    return LoadedSource(source, value_range=loaded.value_range)


def _numbered(images: LabelledImages, number: int, domains: int, alone: Iterator[int] | None) -> ImageSet:
    """Add the index of the domain, and make groups distinct from those of other domains.

    alone: group numbers for images of a domain without groups; None if no domain has groups.
    """
    single = single_images(images, "several domains")
    metadata = {"domain": torch.full((len(single),), number)}
    if (group := single.metadata.get("group")) is not None:
        metadata["group"] = group.long() * domains + number
    elif alone is not None:
        metadata["group"] = torch.tensor([*islice(alone, len(single))])
    return replace(single, metadata=metadata)


def _pairs(splits: Splits, options: PairData) -> Splits:
    """Make pairs within each split; each split draws them with another seed.

    Raises:
        CapsellaError: images with a bright border, whose sums would be white.
    """
    sources = [images for images in splits.named().values() if isinstance(images, ImageSet)]  # all are single
    if options.pair_invert:
        sources = [replace(images, images=255 - images.images) for images in sources]
    if (border := _border(sources[0])) > 127:
        raise CapsellaError(
            f"{splits.name}: images must be light on black for pairs, got borders with a mean of {border:.0f} of 255; "
            + ("leave out --pair-invert" if options.pair_invert else "set --pair-invert for dark on bright images")
        )
    numbers = (options.train_pairs, options.validation_pairs, options.test_pairs)
    train, validation, test = (
        PairSet(images, number or PAIRS_PER_IMAGE * len(images), 3 * options.split_seed + stream, options.pair_shift)
        for stream, (images, number) in enumerate(zip(sources, numbers, strict=True))
    )
    name = f"pairs of {splits.name}"
    return replace(splits, name=name, train=train, validation=validation, test=test, table=None)


def _border(images: ImageSet) -> float:
    """Return the mean of the outermost rows and columns of the first thousand images."""
    few = images.images[:1000].float()
    return float(torch.cat([few[..., [0, -1], :].flatten(), few[..., [0, -1]].flatten()]).mean())
