import pytest
import torch

from capsella.training import AugmentOptions
from capsella.training.augment import Augment

SIZE = 7


@pytest.fixture
def images():
    """64 images whose pixels all differ and none is zero, so that a shift can be read off."""
    return torch.rand(64, 1, SIZE, SIZE) * 0.9 + 0.1


def moved(image, down, right):
    """The image shifted, zeros moving in."""
    out = torch.zeros_like(image)
    for row in range(SIZE):
        for column in range(SIZE):
            if 0 <= row - down < SIZE and 0 <= column - right < SIZE:
                out[:, row, column] = image[:, row - down, column - right]
    return out


def shifts(before, after, most):
    """(down, right) of each image."""
    steps = [(down, right) for down in range(-most, most + 1) for right in range(-most, most + 1)]
    found = [[step for step in steps if torch.equal(moved(a, *step), b)] for a, b in zip(before, after, strict=True)]
    assert all(len(matches) == 1 for matches in found)
    return [matches[0] for matches in found]


def test_without_options_nothing_changes(images):
    assert torch.equal(Augment(AugmentOptions(), (SIZE, SIZE))(images), images)


def test_a_shift_can_repeat_the_border(images):
    bright = torch.full_like(images, 0.8)
    dark = Augment(AugmentOptions(shift=2), (SIZE, SIZE))(bright)
    assert (dark == 0).any()
    repeated = Augment(AugmentOptions(shift=2, border="repeat"), (SIZE, SIZE))
    assert torch.equal(repeated(bright), bright)
    assert repeated(images).min() >= images.min() > 0
    with pytest.raises(ValueError, match="border: must be 'zero' or 'repeat', got 'mirror'"):
        AugmentOptions(border="mirror")


@pytest.mark.parametrize("most", [1, 2])
def test_a_shift_moves_whole_pixels_and_zeros_move_in(images, most):
    found = shifts(images, Augment(AugmentOptions(shift=most), (SIZE, SIZE))(images), most)
    # Each image has its own shift, and with 64 images each direction's extremes occur.
    assert {down for down, _ in found} == {right for _, right in found} == set(range(-most, most + 1))


def test_the_generator_decides(images):
    augment = Augment(AugmentOptions(shift=2, flip=True, rotation=20.0), (SIZE, SIZE))
    runs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        runs.append(augment(images))
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def test_a_mirror_turns_left_and_right_alone(images):
    after = Augment(AugmentOptions(mirror=True), (SIZE, SIZE))(images)
    turned = [torch.equal(image.flip(2), changed) for image, changed in zip(images, after, strict=True)]
    same = [torch.equal(image, changed) for image, changed in zip(images, after, strict=True)]
    assert all(one or other for one, other in zip(turned, same, strict=True))
    assert any(turned)
    assert any(same)


def test_a_flip_mirrors_either_way_or_not_at_all(images):
    after = Augment(AugmentOptions(flip=True), (SIZE, SIZE))(images)
    kinds = {"none": (), "rows": (1,), "columns": (2,), "both": (1, 2)}
    found = [
        next(kind for kind, axes in kinds.items() if torch.equal(image.flip(axes), changed))
        for image, changed in zip(images, after, strict=True)
    ]
    assert set(found) == set(kinds)


def test_a_rotation_stays_within_its_limit():
    # A dot right of the centre of an odd image: its angle after the rotation can be read off.
    images = torch.zeros(200, 1, 41, 41)
    images[:, :, 20, 36:39] = 1.0
    after = Augment(AugmentOptions(rotation=30.0), (41, 41))(images)
    rows, columns = torch.meshgrid(torch.arange(41.0) - 20, torch.arange(41.0) - 20, indexing="ij")
    down, right = ((after[:, 0] * axis).sum((1, 2)) for axis in (rows, columns))
    angles = torch.rad2deg(torch.atan2(down, right))
    assert angles.abs().max() <= 31
    assert angles.max() > 20
    assert angles.min() < -20


def test_images_of_other_shapes(images):
    wide = torch.rand(3, 3, 6, 9)
    assert Augment(AugmentOptions(shift=2, flip=True, rotation=5.0), (6, 9))(wide).shape == wide.shape


def digit(rows, columns, size=20):
    """One image whose light is a block of these rows and columns."""
    image = torch.zeros(1, 1, size, size)
    image[..., slice(*rows), slice(*columns)] = 0.1 + 0.9 * torch.rand(rows[1] - rows[0], columns[1] - columns[0])
    return image


def box(image):
    """First and last lit row and column."""
    rows, columns = ((image[0] > 0.5 / 255).any(axis).nonzero() for axis in (1, 0))
    return int(rows[0]), int(rows[-1]), int(columns[0]), int(columns[-1])


def test_a_shift_within_the_margins_reaches_the_border_and_cuts_nothing():
    image = digit((2, 15), (3, 19))  # margins of 2, 5, 3 and 1
    moved = Augment(AugmentOptions(margin_shift=True), (20, 20))(image.expand(2000, -1, -1, -1))
    boxes = [box(one) for one in moved]
    assert {top for top, *_ in boxes} == set(range(8))
    assert {left for _, _, left, _ in boxes} == set(range(5))
    block = image[0, 0, 2:15, 3:19]
    for one, (top, bottom, left, right) in zip(moved[:50], boxes, strict=False):
        assert torch.equal(one[0, top : bottom + 1, left : right + 1], block)
    shares = [abs(top - 2) / (5 if top > 2 else 2) for top, *_ in boxes]
    assert 0.1 < sum(shares) / len(shares) < 0.4  # a half-normal's mean is 0.27; whole pixels round down


def test_a_black_image_stays_black():
    augment = Augment(AugmentOptions(margin_shift=True, rotation_sd=10.0, squeeze=0.25, erase=2), (20, 20))
    assert torch.equal(augment(torch.zeros(3, 1, 20, 20)), torch.zeros(3, 1, 20, 20))


def test_half_of_the_images_turn_by_normal_angles():
    """Angles are read off a bright line through the centre, by its second moments."""
    size = 41
    image = torch.zeros(1, 1, size, size)
    image[..., size // 2, 5:36] = 1.0
    turned = Augment(AugmentOptions(rotation_sd=10.0), (size, size))(image.expand(1000, -1, -1, -1))[:, 0]
    y, x = torch.meshgrid(*[torch.arange(size) - size // 2.0] * 2, indexing="ij")
    angles = torch.rad2deg(0.5 * torch.atan2(2 * (turned * x * y).sum((1, 2)), (turned * (x * x - y * y)).sum((1, 2))))
    still = angles.abs() < 1e-3
    assert 0.44 < still.double().mean() < 0.56
    assert angles.abs().max() <= 30.1
    assert 8.5 < float(angles[~still].std()) < 11.5
    assert abs(float(angles[~still].mean())) < 1.5


def test_a_squeeze_narrows_and_keeps_the_height():
    image = digit((4, 16), (4, 16))
    narrowed = Augment(AugmentOptions(squeeze=0.5), (20, 20))(image.expand(500, -1, -1, -1))
    boxes = torch.tensor([box(one) for one in narrowed])
    widths = boxes[:, 3] - boxes[:, 2] + 1
    assert (boxes[:, 1] - boxes[:, 0] + 1 == 12).all()
    assert widths.min() < 10
    assert widths.max() <= 12
    assert ((boxes[:, 3] + boxes[:, 2]) == 19).all()  # about the centre


def test_each_axis_stretches_on_its_own_within_its_limit():
    image = torch.zeros(1, 1, 40, 40)
    image[..., 10:30, 10:30] = 1
    stretched = Augment(AugmentOptions(stretch=0.5), (40, 40))(image.expand(500, -1, -1, -1))
    sides = torch.stack([stretched[:, 0, 20].sum(1), stretched[:, 0, :, 20].sum(1)])
    assert 9.5 <= sides.min() < 11
    assert 29 < sides.max() <= 30.5
    assert abs(torch.corrcoef(sides)[0, 1]) < 0.15


def test_neither_rotation_nor_stretch_leaves_black_corners():
    grey = torch.full((50, 2, 9, 9), 0.4)
    torch.testing.assert_close(Augment(AugmentOptions(rotation=45.0, stretch=0.4), (9, 9))(grey), grey)


def test_erased_squares():
    erased = Augment(AugmentOptions(erase=3), (12, 14))(torch.ones(500, 1, 12, 14))
    black = erased[:, 0] == 0
    assert (black.sum((1, 2)) == 9).all()
    anywhere = black.any(0)
    expected = torch.zeros(12, 14, dtype=torch.bool)
    expected[3:9, 3:11] = True
    assert torch.equal(anywhere, expected)
    with pytest.raises(ValueError, match=r"erase: must be at most a third of the image's 12×14, got 5"):
        Augment(AugmentOptions(erase=5), (12, 14))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rotation_sd": 61.0}, "rotation_sd: must be from 0 to 60 degrees, got 61.0"),
        ({"squeeze": 1.0}, r"squeeze: must be a share in \[0, 1\), got 1.0"),
        ({"stretch": -0.1}, r"stretch: must be a share in \[0, 1\), got -0.1"),
        ({"erase": -1}, "erase: must not be negative, got -1"),
    ],
)
def test_options_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        AugmentOptions(**options)
