"""White blood cells under the microscope: four public sets, packed as .npz files below `wbc/`."""

from dataclasses import fields, replace

from capsella.data.download import find
from capsella.data.npz import image_set, load_arrays, read_npz, with_radius
from capsella.data.options import DataOptions, NamedData, NpzData
from capsella.data.sources.base import Source
from capsella.data.splits import SourceSplits

_PBC = "wbc/pbc_subset_224.npz"
_PBC_FULL = "wbc/pbc_full_128.npz"
_BCCD = "wbc/bccd_augmented_128x96.npz"
_SEGMENTATION = "wbc/segmentation_wbc_1.npz"
_GET_PBC = "not offered for download in this form; the originals (doi:10.17632/snkd93bnjr.1) can be read as a folder"
_GET_BCCD = "not offered for download in this form; the originals are on Kaggle, paultimothymooney/blood-cells"
_GET_SEGMENTATION = "not offered for download in this form; the originals are at github.com/zxaoyou/segmentation_WBC"


def _read_pbc(options: NamedData) -> SourceSplits:
    return replace(read_npz(find(_PBC, _GET_PBC), options), name="pbc")


def _read_pbc_full(options: NamedData) -> SourceSplits:
    return replace(read_npz(find(_PBC_FULL, _GET_PBC), options), name="pbc-full")


def _read_bccd(options: NamedData) -> SourceSplits:
    # Its images are rotated and shifted copies of 348 photographs, which must stay in one split.
    path = find(_BCCD, _GET_BCCD)
    shared = {field.name: getattr(options, field.name) for field in fields(DataOptions)}
    return replace(read_npz(path, NpzData(path, duplicates="ignore", **{**shared, "group": "photo"})), name="bccd")


def _read_segmentation(options: NamedData) -> SourceSplits:
    # Its only basophil is left out: one image cannot be in train, validation and test.
    path = find(_SEGMENTATION, _GET_SEGMENTATION)
    arrays = load_arrays(path)
    measured = with_radius(path, arrays, options)
    images, broken, *_ = image_set(path, arrays, measured)
    others = [name for name in images.classes if name != "basophil"]
    return SourceSplits("segmentation-wbc", images.of_classes(others), broken=broken, cell_radius=measured.cell_radius)


SOURCES = (
    Source(
        name="pbc",
        read=_read_pbc,
        images="1,503 / 243 / 377",
        size="224×224×3",
        classes=5,
        files=(_PBC,),
        get=_GET_PBC,
        citation="Acevedo et al. 2020, Data in Brief 30; splits of WBCAtt: Tsutsui, Pang, Wen 2023, NeurIPS",
    ),
    Source(
        name="pbc-full",
        read=_read_pbc_full,
        images="10,648 / 1,522 / 3,042",
        size="128×128×3",
        classes=8,
        files=(_PBC_FULL,),
        get=_GET_PBC,
        citation="Acevedo et al. 2020, Data in Brief 30; its eight classes, split at random",
    ),
    Source(
        name="bccd",
        read=_read_bccd,
        images="9,957 / – / 2,487",
        size="96×128×3",
        classes=4,
        files=(_BCCD,),
        get=_GET_BCCD,
        citation="Shenggan 2017, BCCD Dataset; Mooney 2018, Blood Cell Images (augmented copies of 348 photographs)",
    ),
    Source(
        name="segmentation-wbc",
        read=_read_segmentation,
        images="299 / – / –",
        size="about 120×120×3",
        classes=4,
        files=(_SEGMENTATION,),
        get=_GET_SEGMENTATION,
        citation="Zheng, Wang, Wang, Liu 2018, Micron 107 (Jiangxi Tecom; its only basophil is left out)",
    ),
)
