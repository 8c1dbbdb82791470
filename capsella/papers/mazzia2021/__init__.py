"""Mazzia, Salvetti, Chiaberge 2021, "Efficient-CapsNet"."""
