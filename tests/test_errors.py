import pytest

from capsella.errors import CapsellaError, at_least, errors_of, not_negative, unknown_name


def test_near_names_are_suggested() -> None:
    error = unknown_name("model", "sabor2017_capsnet", ["sabour2017_capsnet", "sabour2017_cnn", "zebra"])
    assert isinstance(error, ValueError)
    assert "model: must be a registered name, got 'sabor2017_capsnet'; did you mean sabour2017_capsnet" in str(error)
    assert "zebra" not in str(error)


def test_all_names_are_listed_where_none_is_near() -> None:
    assert str(unknown_name("source", "xyz", ["mnist", "digits"])).endswith("got 'xyz'; known: digits, mnist")


def test_the_first_number_out_of_range_is_named() -> None:
    at_least(1, epochs=1, patience=None)
    with pytest.raises(ValueError, match=r"^patience: must be at least 1, got 0$"):
        at_least(1, epochs=3, patience=0)
    with pytest.raises(ValueError, match=r"^l2: must not be negative, got nan$"):
        not_negative(shift=0, l2=float("nan"))


@pytest.mark.parametrize("kind", [ValueError, CapsellaError])
def test_errors_name_their_file(kind: type[Exception]) -> None:
    with pytest.raises(CapsellaError, match=r"^a\.npz: labels are missing$"), errors_of("a.npz"):
        raise kind("labels are missing")
