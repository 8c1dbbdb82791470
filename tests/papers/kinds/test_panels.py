"""Panels of lines: what is drawn where, and the paper's lines told apart."""

import pytest

from capsella.papers.kinds.panels import COLOURS, Panel, Series, panels_figure


def test_the_papers_lines_are_hollow_and_dashed_in_the_colour_of_ours():
    series = (
        Series("a", (1, 2), (0.5, 0.6), (0.1, 0.1)),
        Series("b", (1, 2), (0.4, 0.3)),
        Series("b", (1, 3), (0.2, 0.9), paper=True),
    )
    figure = panels_figure([Panel("t", "x", "y", series, ticks=(1, 2, 3), level=("chance", 0.2))])
    (axes,) = figure.axes
    dashed = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert [line.get_color() for line in dashed] == [COLOURS[1]]
    assert dashed[0].get_markerfacecolor() == "none"
    assert list(dashed[0].get_ydata()) == [0.2, 0.9]
    texts = [text.get_text() for text in axes.get_legend().get_texts()]
    assert texts == ["a", "b", "as the paper prints it", "chance"]
    assert (axes.get_title(), axes.get_xlabel(), axes.get_ylabel()) == ("t", "x", "y")


def test_panels_stand_in_rows():
    panel = Panel("t", "x", "y", (Series("a", (1,), (1,)),))
    assert len(panels_figure([panel] * 4).axes) == 4


def test_errors():
    with pytest.raises(ValueError, match="panels: must hold at least one, got none"):
        panels_figure([])
    with pytest.raises(ValueError, match="y: must be 2 numbers, one for each x, got 1"):
        Series("a", (1, 2), (1,))
    with pytest.raises(ValueError, match="sd: must be 1 numbers, one for each x, got 2"):
        Series("a", (1,), (1,), (0.1, 0.2))
