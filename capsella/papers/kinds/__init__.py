"""Kinds of published tables and figures, which several papers share."""
