"""Cropping and standardising inside the network."""

import pytest
import torch

from capsella.layers import CropImages, StandardiseImages


def test_standardised_images_have_no_mean_and_unit_variance() -> None:
    images = torch.rand(3, 2, 5, 7) * torch.tensor([0.01, 0.1, 1.0])[:, None, None, None] + 0.3
    out = StandardiseImages()(images)
    torch.testing.assert_close(out.mean((1, 2, 3)), torch.zeros(3), atol=1e-4, rtol=0.0)
    torch.testing.assert_close(out.square().mean((1, 2, 3)), torch.ones(3), atol=1e-4, rtol=0.0)


def test_a_blank_image_gives_zeros_and_finite_gradients() -> None:
    images = torch.full((2, 1, 4, 4), 0.5, requires_grad=True)
    out = StandardiseImages()(images)
    torch.testing.assert_close(out, torch.zeros_like(out), atol=1e-3, rtol=0.0)
    out.sum().backward()
    assert images.grad.isfinite().all()


def test_centre_crop_in_evaluation() -> None:
    images = torch.arange(48.0).repeat(1, 1, 48, 1)
    out = CropImages((48, 48), 32).eval()(images)
    assert torch.equal(out, torch.arange(8.0, 40.0).repeat(1, 1, 32, 1))


def test_random_crops_in_training_are_whole_pieces_of_their_own_image() -> None:
    rows, columns = torch.meshgrid(torch.arange(6.0), torch.arange(5.0), indexing="ij")
    images = torch.stack([rows, columns]).repeat(400, 1, 1, 1) + 100 * torch.arange(400.0)[:, None, None, None]
    out = CropImages((6, 5), 3).train()(images) - 100 * torch.arange(400.0)[:, None, None, None]
    top, left = out[:, 0, 0, 0], out[:, 1, 0, 0]
    assert {(int(r), int(c)) for r, c in zip(top, left, strict=True)} == {(r, c) for r in range(4) for c in range(3)}
    piece = torch.stack([rows[:3, :3], columns[:3, :3]])
    assert torch.equal(out, piece + torch.stack([top, left], 1)[:, :, None, None])


@pytest.mark.parametrize("size", [0, 6])
def test_crop_that_does_not_fit(size: int) -> None:
    with pytest.raises(ValueError, match=f"crop: must be from 1 to the image's 6×5, got {size}"):
        CropImages((6, 5), size)
