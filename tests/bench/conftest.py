"""Exports are traced without shape checks."""

from tests.export.conftest import _without_shape_checks

__all__ = ["_without_shape_checks"]
