"""The version of this package, read by the build and written into every run."""

__version__ = "0.1.0"
