"""`capsella data`, `list` and `info`."""

from PIL import Image

from capsella.environment import environment
from capsella.papers import get_recipe


def test_a_full_name_shows_one(cli):
    recipe, out = get_recipe("demo"), cli("list", "recipes", "demo").out
    assert f"  epochs = {recipe.epochs}\n" in out
    assert "  model.routing.iterations = 3\n" in out
    one = cli("list", "models", "sabour2017_capsnet").out
    assert "8,215,568 parameters" in one
    assert "primary_relu=False" in one
    assert "sabour2017_capsnet" not in cli("list", "models", "hinton*").out


def test_info_names_versions_and_the_backend(cli, monkeypatch, tmp_path):
    monkeypatch.setenv("CAPSELLA_DATA", str(tmp_path))
    monkeypatch.setattr("capsella.training.resolve.measure_ratio", lambda: 1.9)
    monkeypatch.setattr("capsella.training.resolve.MEMORY", tmp_path / "precision.json")
    answer = cli("info")
    assert answer.code == 0
    for text in (environment()["torch"], str(tmp_path), "eager", "auto → bf16-mixed"):
        assert text in answer.out


def test_show_counts_and_draws(cli, copied, tmp_path, monkeypatch):
    images, _ = copied
    monkeypatch.chdir(tmp_path)
    odd = images / "rows" / "[red]odd.png"
    odd.write_bytes(b"no image")
    answer = cli("data", "show", images, "--skip-broken")
    assert answer.code == 0, answer.err
    assert "my images: 17×17×1" in answer.out
    assert str(odd) in answer.out
    with Image.open(tmp_path / "my images-sheet.png") as sheet:
        assert sheet.size[1] > 3 * 17


def test_split_writes_a_file_that_training_reads(cli, images, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ("data", "split", images, "--per-class", 3, "--split-seed", 4)
    assert cli(*words).code == 0
    out = tmp_path / "my images-split.csv"
    assert out.read_text().count(",train\n") == 9
    shown = cli("data", "show", images, "--split-file", out, "--out", tmp_path / "s.png").out
    assert next(line.split() for line in shown.splitlines() if "rings" in line)[3] == "3"
    again = cli(*words)
    assert (again.code, "--out" in again.err) == (1, True)
