"""Stained cells: found, cut out at one scale, brought to one colour. Images are drawn here, so the truth is known."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from PIL import Image

from capsella.data import FolderData, load_data, read_image
from capsella.data.cell_crop import NUCLEUS, RADII, cut_cell, find_nucleus, measured_cut
from capsella.errors import CapsellaError
from capsella.image_options import CellCut

PURPLE, PINK, WHITE = (82, 41, 168), (225, 190, 200), (250, 245, 240)


def drawn(size=120, centre=(60, 60), radius=20, lobes=1, colours=(PURPLE, PINK, WHITE)):
    """A round cell with a nucleus of one or two discs, on white; a red cell lies beside it."""
    nucleus, cytoplasm, white = (np.array(colour, float) for colour in colours)
    rows, columns = np.mgrid[:size, :size]
    pixels = np.tile(white, (size, size, 1))
    away = np.hypot(rows - centre[0], columns - centre[1])
    pixels[np.hypot(rows - size * 0.1, columns - size * 0.1) < radius * 0.6] = (230, 150, 140)
    pixels[away < 1.6 * radius] = cytoplasm
    shifts = [0.0] if lobes == 1 else [-0.56 * radius, 0.56 * radius]
    for shift in shifts:
        of_lobe = np.hypot(rows - centre[0], columns - centre[1] - shift)
        pixels[of_lobe < radius * (1 if lobes == 1 else 0.5)] = nucleus
    return pixels.round().astype(np.uint8)


@pytest.mark.parametrize(("centre", "radius"), [((60, 60), 20), ((50, 75), 14), ((66, 52), 25)])
def test_a_nucleus_is_found_where_it_lies(centre, radius):
    found = find_nucleus(drawn(centre=centre, radius=radius))
    assert (found.row, found.column) == pytest.approx(centre, abs=1)
    assert found.radius == pytest.approx(radius, rel=0.08)


def test_lobes_belong_together_and_a_far_one_does_not():
    both = find_nucleus(drawn(lobes=2))
    assert both.column == pytest.approx(60, abs=1)
    assert both.radius > 14  # two discs of radius 10, 22 apart
    alone = drawn(radius=12)
    alone[100:108, 100:108] = PURPLE
    assert find_nucleus(alone).column == pytest.approx(60, abs=1)


@pytest.mark.parametrize("size", [100, 240, 700])
@pytest.mark.parametrize("radius", [0.1, 0.2])
def test_cells_of_every_magnification_have_one_size(size, radius):
    image = Image.fromarray(drawn(size, (size * 0.55, size * 0.45), radius * size))
    pixels = np.asarray(cut_cell(image, (64, 64), CellCut(False))).astype(float)
    nucleus = np.abs(pixels - PURPLE).sum(-1) < 60
    assert np.sqrt(nucleus.sum() / np.pi) == pytest.approx(32 / RADII, rel=0.08)
    assert [axis.mean() for axis in nucleus.nonzero()] == pytest.approx([31.5, 31.5], abs=1)


def test_a_black_border_is_no_image():
    turned = np.asarray(Image.fromarray(drawn()).rotate(20))
    assert turned[0, 0].max() == 0
    found = find_nucleus(turned, turned.max(-1) == 0)
    assert (found.row, found.column) == pytest.approx((60, 60), abs=2)
    pixels = np.asarray(
        cut_cell(Image.fromarray(np.asarray(Image.fromarray(drawn()).rotate(45))), (40, 40), CellCut(False))
    )
    assert pixels.max(-1).min() > 12


@pytest.mark.parametrize("white", [(255, 250, 180), (215, 215, 214)])
def test_matched_stains_are_alike(white):
    """Another lamp and a paler stain: densities over the background times a number for each colour."""
    light = np.array(white) / WHITE
    paler = [tuple(light * WHITE * (np.array(colour) / WHITE) ** 0.6) for colour in (PURPLE, PINK, WHITE)]
    ours, theirs = (
        np.asarray(cut_cell(Image.fromarray(drawn(colours=colours)), (32, 32), CellCut(True))).astype(float)
        for colours in ((PURPLE, PINK, WHITE), paler)
    )
    assert np.abs(ours - theirs).mean() < 2.5
    assert ours[16, 16] == pytest.approx(255 * np.exp(-np.array(NUCLEUS)), abs=2)
    assert theirs[0, 31].min() > 250  # the background has become white


def test_cytoplasm_of_two_laboratories_is_alike_but_a_class_keeps_its_colour():
    """Each laboratory is measured on its own cells, whose cytoplasm has another colour; one cell in four is redder."""
    random, cytoplasm = np.random.default_rng(0), np.s_[8:25, 25:29]  # in a crop of 32 pixels
    shown = {}
    for laboratory, (pink, red) in {
        "pink": (PINK, (225, 160, 180)),
        "yellow": ((215, 200, 150), (215, 168, 135)),
    }.items():
        pictures = [drawn(colours=(PURPLE, red if k % 4 == 0 else pink, WHITE)) for k in range(8)]
        images = [Image.fromarray((p + random.normal(0, 6, p.shape)).clip(0, 255).astype(np.uint8)) for p in pictures]
        cut, number = measured_cut(images, matched=True)
        assert number == 8
        for name, how in {"nucleus": dataclasses.replace(cut, stain=None), "stain": cut}.items():
            cells = [np.asarray(cut_cell(image, (32, 32), how))[cytoplasm].mean((0, 1)) for image in images]
            shown[laboratory, name] = np.mean(cells[:4][1:], 0), cells[0]
    apart = {name: np.abs(shown["pink", name][0] - shown["yellow", name][0]).max() for name in ("nucleus", "stain")}
    assert apart["nucleus"] > 25
    assert apart["stain"] < 8
    for usual, redder in (shown["pink", "stain"], shown["yellow", "stain"]):
        assert usual[1] - redder[1] > 8


def test_a_cut_is_read_as_it_was_written():
    cut = measured_cut([Image.fromarray(drawn())], matched=True)[0]
    assert CellCut.from_dict(json.loads(json.dumps(cut.to_dict()))) == cut
    with pytest.raises(ValueError, match="stain"):
        CellCut(True, 3.0, cut.stain._replace(amount=0.0))


def test_reading_cuts_cells_and_says_what_it_cannot(tmp_path):
    file = tmp_path / "a.png"
    Image.fromarray(drawn(240, (100, 150), 30)).save(file)
    expected = np.asarray(cut_cell(Image.fromarray(drawn(240, (100, 150), 30)), (48, 48), CellCut(True)))
    assert torch.equal(
        read_image(file, (48, 48), cut=CellCut(True)), torch.from_numpy(expected.copy()).permute(2, 0, 1)
    )
    Image.fromarray(drawn()).convert("L").save(tmp_path / "grey.png")
    with pytest.raises(CapsellaError):
        read_image(tmp_path / "grey.png", (48, 48), cut=CellCut(False))
    with pytest.raises(ValueError, match="cut"):
        read_image(file, cut=CellCut(False))


def test_cells_of_one_laboratory_keep_their_sizes(tmp_path):
    for name, radius in (("large", 24), ("small", 16)):
        (tmp_path / name).mkdir()
        for k in range(6):
            Image.fromarray(drawn(160, (70 + 3 * k, 85 - 2 * k), radius)).save(tmp_path / name / f"{k}.png")
    options = FolderData(tmp_path, size=64, cells="cut", test=0.4, validation=0.4)
    splits = load_data(options)
    assert splits.cut.radius == pytest.approx(20, rel=0.08)  # between both
    nuclei = (splits.train.images - torch.tensor(PURPLE)[:, None, None]).float().abs().sum(1) < 60
    widths = (nuclei.sum((1, 2)) / torch.pi).sqrt()
    for label, radius in ((0, 24), (1, 16)):
        assert widths[splits.train.labels == label].mean() == pytest.approx(16 * radius / splits.cut.radius, rel=0.06)
    given = load_data(dataclasses.replace(options, cell_radius=30.0))
    assert given.cut.radius == 30
    assert measured_cut([Image.new("RGB", (40, 40), "white")], matched=True) == (CellCut(True), 0)
