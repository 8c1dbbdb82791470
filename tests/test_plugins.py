"""A routing of one's own: loaded from a file, trained, saved, and refused with a reason if the file is wrong."""

import json
import sys
from pathlib import Path

import pytest
import torch

from capsella import routing
from capsella.cli import main
from capsella.errors import CapsellaError
from capsella.plugins import load_plugin
from capsella.training import load_run

EXAMPLE = Path(__file__).parents[1] / "examples" / "cosine_routing.py"


@pytest.fixture(autouse=True)
def _forget():
    yield
    for name in ("cosine_routing", "broken"):
        sys.modules.pop(name, None)
    routing.ROUTINGS.pop("cosine", None)


def test_the_example_trains_and_its_run_is_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["train", "demo", "--plugin", str(EXAMPLE), "--model-kwargs", "routing=cosine", "routing.sharpness=2.0"]
    main([*words, "--epochs", "1", "--per-class", "2", "--out", "run", "--accelerator", "cpu"])
    assert load_run(Path("run")).model.options["routing"] == {"name": "cosine", "sharpness": 2.0}
    load_plugin(EXAMPLE)  # a second time it is the same
    assert json.loads(Path("run/config.json").read_text())["recipe"]["model"]["routing"]["name"] == "cosine"
    del routing.ROUTINGS["cosine"]
    with pytest.raises(CapsellaError, match="--plugin") as error:
        load_run(Path("run"))
    assert "version" not in str(error.value)


def test_the_example_routes():
    load_plugin(EXAMPLE)
    votes = torch.randn(2, 6, 3, 4, dtype=torch.float64, requires_grad=True)
    cosine = sys.modules["cosine_routing"].cosine_routing
    routed = cosine(votes)
    torch.testing.assert_close(routed.couplings.sum(2), torch.ones(2, 6, dtype=torch.float64))
    torch.testing.assert_close(cosine(votes, 0.0).poses, routing.uniform_routing(votes).poses)
    assert torch.autograd.gradcheck(lambda votes: cosine(votes).poses, votes)


@pytest.mark.parametrize("text", [None, "1 / 0", "import nothing_of_this_name", "def ("])
def test_a_plugin_that_cannot_be_loaded_is_named(tmp_path, text):
    path = tmp_path / "broken.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(CapsellaError, match=r"broken\.py"):
        load_plugin(path)
    assert "broken" not in sys.modules
