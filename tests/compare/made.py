"""A short comparison of two small networks, from the command line."""

from capsella.cli import main

NETWORKS = ("hinton2018_matrix_capsnet_small", "hinton2018_cnn")
SIZE = 17
WHOLE = ("--models", *NETWORKS, "--epochs", "1", "--seeds", "2", "--rates", "1", "--accelerator", "cpu")
FLAGS = (*WHOLE, "--sizes", "0.5", "1")


def call(*words):
    main(["compare", *map(str, words)])
