"""Not part of the package: what is made for the repository, as committed results as Markdown.

Also the shared pages and the pictures of routings in `docs/`, the libraries of shared pages, and the cells of `bccd`.
"""
