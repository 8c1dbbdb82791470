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


@pytest.mark.parametrize(
    ("line", "folder", "limit", "used", "cache"),
    [
        ("0::/job/step", "job", "memory.max", "memory.current", "inactive_file"),
        ("4:memory:/job", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ],
)
def test_free_memory_is_within_the_limit_of_a_container(tmp_path, line, folder, limit, used, cache):
    group = tmp_path / "sys/fs/cgroup" / folder
    for path in (tmp_path / "proc/self", group, group / "step"):
        path.mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\nMemAvailable: 8 kB\n")
    assert free_memory(tmp_path) == 8192
    (tmp_path / "proc/self/cgroup").write_text(f"1:cpu:/\n{line}\n")
    for name, value in ((limit, 5000), (used, 3000), ("memory.stat", f"anon 1\n{cache} 500")):
        (group / name).write_text(f"{value}\n")
        (group / "step" / name).write_text("max\n")
    assert free_memory(tmp_path) == 2500
    (group / limit).write_text("max\n")
    assert free_memory(tmp_path) == 8192
