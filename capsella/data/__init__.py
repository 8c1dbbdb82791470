"""Images: the named public sets, one's own, and how they are split."""

from typing import TYPE_CHECKING

from capsella.lazy import lazy_imports

if TYPE_CHECKING:
    from capsella.data.batching import balanced_order, batches, epoch_batches, epoch_order, even_shares, evenly
    from capsella.data.catalogue import SourceRow, source_names, source_table
    from capsella.data.download import data_root
    from capsella.data.folder import folder_files
    from capsella.data.images import Batch, ImageSet
    from capsella.data.laboratory import (
        Laboratory,
        by_class_name,
        common_classes,
        copies_among,
        draw_labelled,
        misspelt,
        on_laboratory,
        pixel_digests,
        read_laboratory,
        without,
    )
    from capsella.data.load import load_data, load_once
    from capsella.data.options import (
        DataOptions,
        DomainData,
        FolderData,
        NamedData,
        NpzData,
        PairData,
        data_from,
    )
    from capsella.data.pairs import Overlap, PairSet, drawing_speed, overlap
    from capsella.data.reading import read_image
    from capsella.data.show import ClassCounts, contact_sheet, describe, few_groups, too_few, warn_of_few
    from capsella.data.split.make import load_split, save_split
    from capsella.data.split.sets import LabelledImages, Splits, single_images
    from capsella.data.split.table import SplitTable, read_split_file
    from capsella.data.split.thesis import THESIS_SETS, save_thesis_sets, thesis_set
else:
    __getattr__ = lazy_imports(__name__, __file__)
