"""The network and the digits of the exports, of which some backends are made."""

from tests.export.conftest import _without_shape_checks, model, splits

__all__ = ["_without_shape_checks", "model", "splits"]
