"""`capsella recipes`, and the recipes in the help of `capsella train`."""

import pytest

from capsella.papers import get_recipe


def test_recipes_are_listed_by_paper(cli):
    lines = cli("recipes").out.splitlines()
    heading = lines.index("sabour2017")
    assert lines[heading + 1] == "  sabour2017-mnist"
    assert lines[heading + 2].startswith("    ")
    assert lines.index("forslov2018") < lines.index("  forslov2018-emnet1-init1-modern")


def test_a_pattern_chooses(cli):
    out = cli("recipes", "hinton2018-*").out
    assert "hinton2018-smallnorb-cnn" in out.split()
    assert "sabour2017" not in out


def test_a_full_name_shows_all_fields(cli):
    out = cli("recipes", "demo").out
    assert out.startswith("demo: ")
    recipe = get_recipe("demo")
    for line in (f"epochs = {recipe.epochs}", f"data.size = {recipe.data.size}", "model.routing.iterations = 3"):
        assert f"  {line}\n" in out
    assert "sabour2017-mnist" not in out


@pytest.mark.parametrize("word", ["sabour2017-mnst", "sabour2017-mnst*"])
def test_a_name_that_is_none(cli, word):
    answer = cli("recipes", word)
    assert (answer.code, answer.out) == (1, "")
    assert "did you mean sabour2017-mnist" in answer.err


def test_the_help_of_train_has_them_by_paper(cli):
    lines = cli("train", "--help").out.splitlines()
    after = lines[lines.index("hinton2018") + 1]
    assert after.startswith("  hinton2018-smallnorb  ")  # several on a line
