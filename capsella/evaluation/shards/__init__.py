"""Predictions of millions of files on a Ray cluster: parts of the names, and a Parquet file of each."""
