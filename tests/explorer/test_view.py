import math

import pytest
import torch

from capsella.explain import dimension_tweaks
from capsella.explain.tweaks import dial_names
from capsella.explorer.view import (
    DIALS,
    decode_poses,
    drawn_classes,
    look_at,
    move,
    reconstructions,
    reset,
    sweep,
    turn_to,
)


@pytest.fixture
def view(capsnet):
    return look_at(capsnet.model, capsnet.image(2), "a test image", (2,))


def test_the_strongest_class_gets_the_dials(capsnet, view):
    with torch.no_grad():
        output = capsnet.model(capsnet.image(2).unsqueeze(0))
    assert view.target == int(output.activations.argmax())
    torch.testing.assert_close(view.activations, output.activations[0])
    torch.testing.assert_close(view.poses, output.capsules.poses[0, 0, 0])
    assert not view.offsets.any()
    torch.testing.assert_close(reconstructions(capsnet.model, view, [view.target])[0], output.reconstruction[0])


def test_a_dial_draws_what_a_dimension_tweak_does(capsnet, view):
    moved = move(view, 5, 0.2)
    expected = dimension_tweaks(capsnet.model, view.image, view.target, [0.2], [5])[0, 0]
    torch.testing.assert_close(reconstructions(capsnet.model, moved, [view.target])[0], expected)
    assert not view.offsets.any()  # the old view is as it was


def test_dials_add_up_and_each_class_keeps_its_own(capsnet, view):
    other = (view.target + 1) % 3
    both = move(turn_to(move(move(view, 0, 0.1), 15, -0.25), other), 3, 0.05)
    assert both.target == other
    assert both.offsets[view.target].nonzero().flatten().tolist() == [0, 15]
    assert both.offsets[other].nonzero().flatten().tolist() == [3]
    assert reset(both).offsets.nonzero().tolist() == [[view.target, 0], [view.target, 15]]
    assert not reset(both, everything=True).offsets.any()


def test_a_sweep_moves_one_dial_and_keeps_the_others(capsnet, view):
    turned = move(view, 1, 0.2)
    swept = sweep(capsnet.model, turned, 3, [-0.25, 0.0, 0.25])
    torch.testing.assert_close(swept[1], reconstructions(capsnet.model, turned, [view.target])[0])
    torch.testing.assert_close(swept[2], reconstructions(capsnet.model, move(turned, 3, 0.25), [view.target])[0])


def test_both_capsules_of_a_pair_are_drawn_each_from_its_own(pairs):
    view = look_at(pairs.model, pairs.image(0), "a pair")
    first, second = drawn_classes(view, 2)
    assert [first, second] == view.activations.topk(2).indices.tolist()
    assert drawn_classes(turn_to(view, second), 2) == [first, second]  # pictures keep their places
    third = ({0, 1, 2} - {first, second}).pop()
    assert drawn_classes(turn_to(view, third), 2) == [third, first]
    drawn = reconstructions(pairs.model, view, [first, second])
    for target, image in zip((first, second), drawn, strict=True):
        torch.testing.assert_close(image, decode_poses(pairs.model, view, [(target, view.poses[target])])[0])


def test_ninety_six_dials_come_in_pages(view):
    from dataclasses import replace

    long = replace(view, poses=torch.zeros(3, 90), offsets=torch.zeros(3, 90))
    assert long.pages == 6
    assert turn_to(long, 0, 5).dials == range(80, 90)
    assert turn_to(long, 0, 1).dials == range(DIALS, 2 * DIALS)


def test_a_matrix_pose_has_rows_and_columns(capsnet, matrix_capsnet):
    assert dial_names(matrix_capsnet.model, 16)[6] == "row 2, column 3"
    assert dial_names(matrix_capsnet.model, 9)[8] == "row 3, column 3"
    assert dial_names(capsnet.model, 16)[6] == "number 7"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda view, model: move(view, 16, 0.0), r"dial: must be in 0…15, got 16"),
        (lambda view, model: move(view, 0, math.nan), r"value: must be finite, got nan"),
        (lambda view, model: turn_to(view, 3), r"target: must be a class index in 0…2, got 3"),
        (lambda view, model: turn_to(view, 0, 1), r"page: must be in 0…0, got 1"),
        (lambda view, model: sweep(model, view, -1, [0.0]), r"dial: must be in 0…15, got -1"),
        (lambda view, model: sweep(model, view, 0, []), r"offsets: must hold at least one number"),
    ],
)
def test_what_cannot_be(call, text, view, capsnet):
    with pytest.raises(ValueError, match=text):
        call(view, capsnet.model)


def test_without_a_decoder_nothing_is_drawn(plain_capsnet):
    view = look_at(plain_capsnet.model, plain_capsnet.image(0), "x")
    with pytest.raises(ValueError, match="must have a decoder for reconstructions"):
        reconstructions(plain_capsnet.model, view, [0])
