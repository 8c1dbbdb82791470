"""Classes for image files: one by one, or for whole folders into a table."""
