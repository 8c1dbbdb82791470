"""Images: the named public sets, one's own, and how they are split."""

from capsella.data.batches import batches
from capsella.data.download import data_root
from capsella.data.images import ImageSet
from capsella.data.load import SourceRow, load_data, source_table
from capsella.data.options import DataOptions
from capsella.data.reading import read_image
from capsella.data.saving import save_split, save_thesis_sets
from capsella.data.show import ClassCounts, contact_sheet, describe
from capsella.data.split_file import read_split_file, write_split_file
from capsella.data.splits import Splits
from capsella.data.thesis_sets import THESIS_SETS, thesis_set

__all__ = [
    "THESIS_SETS",
    "ClassCounts",
    "DataOptions",
    "ImageSet",
    "SourceRow",
    "Splits",
    "batches",
    "contact_sheet",
    "data_root",
    "describe",
    "load_data",
    "read_image",
    "read_split_file",
    "save_split",
    "save_thesis_sets",
    "source_table",
    "thesis_set",
    "write_split_file",
]
