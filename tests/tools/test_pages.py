"""The showcase pages: every training is a command line that capsella takes, and every class fits on the page."""

from tools.pages import PAGES


def test_every_training_is_understood(understood):
    lines = [f"capsella train {words} --epochs 1" for page in PAGES.values() for words in page.trainings.values()]
    assert [line for line in lines if not understood(line)] == []


def test_digits_come_first():
    assert next(iter(PAGES)) == "digits"
    assert PAGES["digits"].images > 10
