import io
import re

import pytest
import torch
from PIL import Image, ImageSequence

from capsella.explorer import panels
from capsella.explorer.pictures import bars, channels_last, data_url
from capsella.explorer.subject import subject_of
from capsella.explorer.view import look_at, move, turn_to


def seen_by(subject, place=0):
    return look_at(subject.model, subject.image(place), subject.caption(place), subject.truth(place))


def sources(page):
    return re.findall(r'<img src="(data:[^"]+)"', page)


def every_picture_is_described(page):
    return len(re.findall(r"<img", page)) == len(re.findall(r'<img src="[^"]+" alt="[^"]+"', page))


def test_names_from_outside_are_text_never_html(capsnet):
    view = turn_to(seen_by(capsnet), 1)
    for page in (panels.seen(capsnet, view), panels.drawn(capsnet, view), panels.thumbnails(capsnet, [1], 0)):
        assert "<b>" not in page
        assert "&lt;b&gt;" in page
        assert every_picture_is_described(page)


def test_bars_say_in_words_what_is_predicted_and_what_is_true():
    page = bars([0.1, 0.9, 0.5, 0.01], ["a", "b", "c", "d"], truth=[3], predicted=[1], most=2)
    rows = re.findall(r"<tr><th scope=\"row\">(.*?)</th>.*?<td>([\d.]+)</td><td>(.*?)</td></tr>", page)
    assert rows == [("b", "0.900", "◆ predicted"), ("c", "0.500", ""), ("d", "0.010", "✓ true")]
    assert "1 smaller ones are not shown" in page


def test_the_picture_follows_the_dial(capsnet):
    view = seen_by(capsnet)
    before, after = (sources(panels.drawn(capsnet, each))[0] for each in (view, move(view, 2, 0.25)))
    assert before != after
    assert "1 of 16 dials turned" in panels.drawn(capsnet, move(view, 2, 0.25))


def test_a_pair_has_two_reconstructions_and_says_which_has_the_dials(pairs):
    view = seen_by(pairs)
    page = panels.drawn(pairs, view)
    assert len(sources(page)) == 2
    captions = re.findall("<figcaption>(.*?)</figcaption>", page)
    assert ["◂ dials" in caption for caption in captions] == [True, False]
    second = view.activations.topk(2).indices.tolist()[1]
    turned = panels.drawn(pairs, move(turn_to(view, second), 0, 0.25))
    assert sources(turned)[0] == sources(page)[0]
    assert sources(turned)[1] != sources(page)[1]


@pytest.mark.parametrize(("name", "text"), [("plain_capsnet", "without a decoder"), ("cnn", "is a CNN")])
def test_dials_that_are_off_say_why(name, text, request):
    subject = request.getfixturevalue(name)
    assert text in panels.why_no_dials(subject)
    assert text in panels.drawn(subject, seen_by(subject))


def test_a_sweep_goes_through_the_range_and_back(capsnet):
    view = seen_by(capsnet)
    page, png, gif = panels.swept(capsnet, view, 4, "number 5")
    assert "from -0.25 to +0.25" in page
    assert every_picture_is_described(page)
    assert Image.open(io.BytesIO(png)).format == "PNG"
    with Image.open(io.BytesIO(gif)) as animation:
        assert animation.info["loop"] == 0
        frames = [frame.convert("L").tobytes() for frame in ImageSequence.Iterator(animation)]
        assert animation.size[0] >= 160
    assert 20 <= len(frames) <= 40
    assert frames[1] == frames[-1]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_every_layer_can_be_looked_into(matrix_capsnet, number):
    page = panels.inside(matrix_capsnet, seen_by(matrix_capsnet), number)
    assert f"routing layer {number + 1} (em)" in page
    assert "not a proven parse tree" in page
    assert "Coupling entropy" in page
    assert ("Distances of the votes" in page) == (number == 2)
    assert every_picture_is_described(page)


def test_a_layer_that_is_not_there(capsnet, cnn):
    with pytest.raises(ValueError, match=r"number: must be in 0…0, got 1"):
        panels.inside(capsnet, seen_by(capsnet), 1)
    assert "nothing is routed" in panels.inside(cnn, seen_by(cnn), 0)
    assert panels.layer_titles(cnn) == []
    assert panels.layer_titles(capsnet) == ["routing layer 1 (dynamic)"]


def test_a_capsnet_beside_a_cnn(capsnet, cnn):
    page = panels.compared((capsnet, seen_by(capsnet)), (cnn, seen_by(cnn, 3)))
    assert page.count("<section>") == 2
    assert capsnet.caption(0).partition(":")[0] in page
    assert "test image 3" in page


def test_thumbnails_come_in_sheets_and_say_right_or_wrong(capsnet):
    places = capsnet.places()
    assert panels.thumbnails(capsnet, places, 0).count("<button") == 24
    assert panels.thumbnails(capsnet, places, 24).count("<button") == 6
    assert "25 to 30 of 30" in panels.thumbnails(capsnet, places, 24)
    right = capsnet.places(outcome="right")
    wrong = capsnet.places(outcome="wrong")
    assert right
    assert sorted(right + wrong) == places
    assert "✗</span>" not in panels.thumbnails(capsnet, right, 0)
    assert capsnet.places("round") == list(range(0, 30, 3))
    assert "No test image is like that" in panels.thumbnails(capsnet, [], 0)


def test_pairs_are_found_by_either_class(pairs):
    found = pairs.places("round")
    assert found == [k for k in range(12) if 0 in pairs.truth(k)]
    assert 0 < len(found) < 12
    assert " + " in pairs.caption(0)


def test_what_a_subject_refuses(capsnet):
    with pytest.raises(ValueError, match=r"place: must be in 0…29, got 30"):
        capsnet.image(30)
    with pytest.raises(ValueError, match="class_name: must be one of the model's classes, got 'square'"):
        capsnet.places("square")
    with pytest.raises(ValueError, match="outcome: must be 'all', 'right' or 'wrong', got 'odd'"):
        capsnet.places(outcome="odd")
    with pytest.raises(ValueError, match="images: must be at least 1, got 0"):
        subject_of(None, capsnet.images, 0)


def test_stereo_pairs_stand_side_by_side_and_colours_stay():
    assert channels_last(torch.rand(2, 5, 7)).shape == (5, 14, 1)
    red = torch.zeros(3, 2, 2)
    red[0] = 2.0  # clipped
    assert data_url(red).startswith("data:image/png;base64,")
    assert channels_last(red).max() == 1
