import sys

import pytest
import torch

from capsella.cli import main
from capsella.errors import (
    CapsellaError,
    NoMemoryError,
    check_minimum,
    errors_of,
    memory_errors,
    not_negative,
    unknown_name,
)


def test_near_names_are_suggested() -> None:
    error = unknown_name("model", "sabor2017_capsnet", ["sabour2017_capsnet", "sabour2017_cnn", "zebra"])
    assert isinstance(error, ValueError)
    assert "model: must be a registered name, got 'sabor2017_capsnet'; did you mean sabour2017_capsnet" in str(error)
    assert "zebra" not in str(error)


def test_all_names_are_listed_where_none_is_near() -> None:
    assert str(unknown_name("source", "xyz", ["mnist", "digits"])).endswith("got 'xyz'; known: digits, mnist")


def test_the_first_number_out_of_range_is_named() -> None:
    check_minimum(1, epochs=1, patience=None)
    with pytest.raises(ValueError, match=r"^patience: must be at least 1, got 0$"):
        check_minimum(1, epochs=3, patience=0)
    with pytest.raises(ValueError, match=r"^l2: must not be negative, got nan$"):
        not_negative(shift=0, l2=float("nan"))


@pytest.mark.parametrize("kind", [ValueError, CapsellaError])
def test_errors_name_their_file(kind: type[Exception]) -> None:
    with pytest.raises(CapsellaError, match=r"^a\.npz: labels are missing$"), errors_of("a.npz"):
        raise kind("labels are missing")


def test_memory_that_is_not_enough_is_a_sentence() -> None:
    with (
        pytest.raises(NoMemoryError, match=r"^a run: out of memory; use a smaller batch or smaller images"),
        memory_errors("all"),
        memory_errors("a run"),
    ):
        raise MemoryError
    with pytest.raises(NoMemoryError, match=r"DefaultCPUAllocator: can't allocate"), memory_errors("a run"):
        torch.empty(2**50)
    with pytest.raises(RuntimeError, match="of another kind"), memory_errors("a run"):
        raise RuntimeError("of another kind")


def test_a_command_that_needs_too_much_memory_ends_with_a_sentence(capsys, monkeypatch) -> None:
    monkeypatch.setattr(sys.modules["capsella.cli.main"], "_run", lambda *_: torch.empty(2**50))
    with pytest.raises(SystemExit, match="1"):
        main(["list", "models"])
    assert capsys.readouterr().err.startswith("error: capsella list: out of memory ([enforce fail")
