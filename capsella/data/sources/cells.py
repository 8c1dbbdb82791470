"""White blood cells under the microscope: public sets packed as .npz files below `wbc/`, or as published.

`pbc` is the Peripheral Blood Cell set: 15,212 of its 17,092 images, in eight classes or, as `pbc-11`, by the codes of
the file names. `pbc-11` leaves out the codes IG and NEUTROPHIL: all of their images have a lilac background, which few
others have. Both split 70/10/20 % of each code; copies and overlapping crops of an image stay in one split.
"""

import csv
import lzma
from dataclasses import fields, replace
from pathlib import Path

from capsella.data.download import data_root, find_or_download
from capsella.data.folder import ClassFile, FolderListing, read_folder, walk
from capsella.data.npz import read_npz
from capsella.data.options import DataOptions, FolderData, NamedData, NpzData
from capsella.data.sources.base import Source
from capsella.data.splits import SourceSplits
from capsella.errors import CapsellaError, pluralize

_PBC, _PBC_FOLDER = "wbc/pbc_full_128.npz", "wbc/PBC_dataset_normal_DIB"
_PBC_SUBSET = "wbc/pbc_subset_224.npz"
_WBC = "segmentation-wbc"
_BCCD = "wbc/bccd_augmented_128x96.npz"
_SEGMENTATION = "wbc/segmentation_wbc_1.npz"
_GET_PBC = (
    "unpack doi:10.17632/snkd93bnjr.1 (CC BY 4.0, https://data.mendeley.com/public-files/datasets/snkd93bnjr/files/"
    f"2fc38728-2ae7-4a62-a857-032af82334c3/file_downloaded) to {_PBC_FOLDER}"
)
_GET_SUBSET = f"not offered for download in this form; pbc has its images, {_GET_PBC}"
_GET_BCCD = "not offered for download in this form; the originals are on Kaggle, paultimothymooney/blood-cells"
_GET_SEGMENTATION = "not offered for download in this form; the originals are at github.com/zxaoyou/segmentation_WBC"
_CLASS_OF = {
    "BA": "basophil",
    "EO": "eosinophil",
    "ERB": "erythroblast",
    **dict.fromkeys(("IG", "MMY", "MY", "PMY"), "immature granulocytes"),
    "LY": "lymphocyte",
    "MO": "monocyte",
    **dict.fromkeys(("BNE", "NEUTROPHIL", "SNE"), "neutrophil"),
    "PLATELET": "platelet",
}
_TELLTALE_CODES = ("IG", "NEUTROPHIL")  # codes that a network could recognise by their background


def _read_pbc(options: NamedData) -> SourceSplits:
    by_code = options.name == "pbc-11"
    if (folder := data_root() / _PBC_FOLDER).is_dir():
        return replace(_read_original(folder, options, by_code), name=options.name)
    path = find_or_download(_PBC, instead=_GET_PBC)
    source = read_npz(path, options, label="code" if by_code else None)
    if by_code:
        names = [name for name in _CLASS_OF if name not in _TELLTALE_CODES]
        sets = {split: images.of_classes(names) for split, images in source.named().items()}
        source = replace(source, **sets)  # type: ignore[arg-type]
    return replace(source, name=options.name)


def pbc_splits() -> dict[str, str]:
    """Return the split of each image of `pbc`, by the name of its file without the suffix."""
    with lzma.open(Path(__file__).with_name("pbc_splits.csv.xz"), "rt", encoding="utf-8") as text:
        return {row["file"]: row["split"] for row in csv.DictReader(text)}


def _read_original(folder: Path, options: NamedData, by_code: bool) -> SourceSplits:
    """Read the eight folders of the authors' archive; images without a split are not used.

    Raises:
        CapsellaError: images are missing.
    """
    splits, files, seen = pbc_splits(), list[ClassFile](), set[str]()
    for path in walk(folder, []):
        code = path.stem.partition("_")[0]
        if path.stem in splits and path.stem not in seen and not (by_code and code in _TELLTALE_CODES):
            label = code if by_code else _CLASS_OF[code]
            files.append(ClassFile(path.relative_to(folder).as_posix(), label, splits[path.stem]))
        seen.add(path.stem)
    if missing := sorted(splits.keys() - seen):
        raise CapsellaError(
            f"{folder}: must hold the images of doi:10.17632/snkd93bnjr.1, lacks {pluralize(len(missing), 'image')} of "
            f"{len(splits)}, e.g. {missing[0]}"
        )
    shared = {field.name: getattr(options, field.name) for field in fields(DataOptions)}
    listing = FolderListing(folder, tuple(files), (f"{len(seen) - len(splits)} images of the set are in no split",))
    return read_folder(FolderData(folder, duplicates="ignore", **shared), listing)


def _read_subset(options: NamedData) -> SourceSplits:
    return replace(read_npz(find_or_download(_PBC_SUBSET, instead=_GET_SUBSET), options), name="pbc-subset")


def _read_bccd(options: NamedData) -> SourceSplits:
    # Its images are rotated and shifted copies of 348 photographs, which must stay in one split.
    path = find_or_download(_BCCD, instead=_GET_BCCD)
    shared = {field.name: getattr(options, field.name) for field in fields(DataOptions)}
    return replace(read_npz(path, NpzData(path, duplicates="ignore", **{**shared, "group": "photo"})), name="bccd")


def _read_segmentation(options: NamedData) -> SourceSplits:
    # Its only basophil is left out: one image cannot be in train, validation and test.
    source = read_npz(find_or_download(_SEGMENTATION, instead=_GET_SEGMENTATION), options)
    others = [name for name in source.train.classes if name != "basophil"]
    return replace(source, name=_WBC, train=source.train.of_classes(others))


_ACEVEDO, _TSUTSUI = "Acevedo et al. 2020, Data in Brief 30", "splits of WBCAtt: Tsutsui, Pang, Wen 2023, NeurIPS"
_SHENGGAN = "Shenggan 2017, BCCD Dataset; Mooney 2018, Blood Cell Images (augmented copies of 348 photographs)"
_ZHENG = "Zheng, Wang, Wang, Liu 2018, Micron 107 (Jiangxi Tecom; its only basophil is left out)"
_FILES, _SUBSET = (_PBC, _PBC_FOLDER), f"{_ACEVEDO}; {_TSUTSUI}"
_ABOUT_120 = "about 120×120×3"
SOURCES = (
    Source("pbc", _read_pbc, "10,648 / 1,522 / 3,042", "128×128×3", 8, _FILES, _ACEVEDO, _GET_PBC),
    Source("pbc-11", _read_pbc, "10,518 / 1,504 / 3,005", "128×128×3", 11, _FILES, _ACEVEDO, _GET_PBC),
    Source("pbc-subset", _read_subset, "1,503 / 243 / 377", "224×224×3", 5, (_PBC_SUBSET,), _SUBSET, _GET_SUBSET),
    Source("bccd", _read_bccd, "9,957 / – / 2,487", "96×128×3", 4, (_BCCD,), _SHENGGAN, _GET_BCCD),
    Source(_WBC, _read_segmentation, "299 / – / –", _ABOUT_120, 4, (_SEGMENTATION,), _ZHENG, _GET_SEGMENTATION),
)
