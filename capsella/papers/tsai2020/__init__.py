"""Tsai, Srivastava, Goh, Salakhutdinov 2020, "Capsules with Inverted Dot-Product Attention Routing"."""
