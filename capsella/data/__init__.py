"""Image data: public data sets by name, your own images, and their splits."""

from typing import TYPE_CHECKING

from capsella.lazy import lazy_imports

if TYPE_CHECKING:
    from capsella.data.batching import balanced_order, batches, epoch_batches, epoch_order, even_shares, evenly
    from capsella.data.catalogue import source_names, source_table
    from capsella.data.domains import (
        Domain,
        common_classes,
        copies_among,
        draw_labelled,
        match_classes,
        pixel_digests,
        without_images,
    )
    from capsella.data.download import data_root
    from capsella.data.folder import FolderListing, FolderSummary, inspect_folder, list_folder
    from capsella.data.images import Batch, ImageSet
    from capsella.data.load import (
        THESIS_SETS,
        LoadedSource,
        load_data,
        load_once,
        load_source,
        read_domain,
        save_split,
    )
    from capsella.data.options import (
        DataOptions,
        DomainData,
        FolderData,
        NamedData,
        NpzData,
        PairData,
        data_from,
    )
    from capsella.data.pairs import PairSet
    from capsella.data.reading import read_image
    from capsella.data.splits import LabelledImages, Splits, SplitTable, read_split_file, single_images
    from capsella.data.summary import ClassCounts, contact_sheet, describe, few_groups, oblong_sheet, warn_of_few
else:
    __getattr__ = lazy_imports(__name__, __file__)
