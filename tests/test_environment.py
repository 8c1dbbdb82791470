"""What a number was measured with, also where git cannot tell."""

import pytest

from capsella.environment import environment, free_memory


@pytest.mark.parametrize("program", [None, "#!/bin/sh\nexit 128\n"])
def test_a_commit_that_git_does_not_tell(program, tmp_path, monkeypatch):
    """There is no git, or it refuses a folder of another owner."""
    if program is not None:
        (tmp_path / "git").write_text(program)
        (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert environment()["commit"] == "unknown"


def test_free_memory_is_within_the_limit_of_a_container(tmp_path):
    group = tmp_path / "sys/fs/cgroup/job"
    for path in (tmp_path / "proc/self", group, group / "step"):
        path.mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\nMemAvailable: 8 kB\n")
    assert free_memory(tmp_path) == 8192
    (tmp_path / "proc/self/cgroup").write_text("0::/job/step\n")
    for name, value in (("memory.max", 5000), ("memory.current", 3000), ("memory.stat", "anon 1\ninactive_file 500")):
        (group / name).write_text(f"{value}\n")
        (group / "step" / name).write_text("max\n")
    assert free_memory(tmp_path) == 2500
    (group / "memory.max").write_text("max\n")
    assert free_memory(tmp_path) == 8192
