from capsella.progress import tracked


def test_a_pipe_gets_no_bar_and_no_blank_line(capsys):
    assert list(tracked(range(3), "counting")) == [0, 1, 2]
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_a_bar_unless_it_is_hidden(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert list(tracked(iter(range(3)), "counting", 3)) == [0, 1, 2]
    assert "counting" in capsys.readouterr().err
    assert list(tracked(range(3), "counting", is_shown=False)) == [0, 1, 2]
    assert capsys.readouterr().err == ""
