"""What a number was measured with, also where git cannot tell."""

import pytest

from capsella.environment import environment


@pytest.mark.parametrize("program", [None, "#!/bin/sh\nexit 128\n"])
def test_a_commit_that_git_does_not_tell(program, tmp_path, monkeypatch):
    """There is no git, or it refuses a folder of another owner."""
    if program is not None:
        (tmp_path / "git").write_text(program)
        (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert environment()["commit"] == "unknown"
