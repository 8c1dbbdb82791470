"""How long networks take."""
