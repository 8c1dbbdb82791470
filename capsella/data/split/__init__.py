"""Which images are trained on, which choose a model, which test it: drawn, written to a file, and read again.

A source's images (`Parts`) are parted as `DataOptions` say, or as a split file does, into `Splits`.
"""
