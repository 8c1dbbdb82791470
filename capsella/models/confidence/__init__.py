"""How sure a trained model may be: temperature, prediction sets, reliability."""
