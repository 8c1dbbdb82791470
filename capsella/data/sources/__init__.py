"""Public data sets: one module for each family, with a reader and what `capsella list data` shows."""
