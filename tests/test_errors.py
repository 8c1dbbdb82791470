from capsella.errors import unknown_name


def test_near_names_are_suggested() -> None:
    error = unknown_name("model", "sabor2017_capsnet", ["sabour2017_capsnet", "sabour2017_cnn", "zebra"])
    assert isinstance(error, ValueError)
    assert "model: must be a registered name, got 'sabor2017_capsnet'; did you mean sabour2017_capsnet" in str(error)
    assert "zebra" not in str(error)


def test_all_names_are_listed_where_none_is_near() -> None:
    assert str(unknown_name("source", "xyz", ["mnist", "digits"])).endswith("got 'xyz'; known: digits, mnist")
