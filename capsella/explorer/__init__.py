"""The explorer: one web page on this machine to turn a capsule's dials and watch what a trained run believes."""

from capsella.explorer.subject import Subject, open_run
from capsella.explorer.view import View, drawn_classes, look_at, move, reconstructions, turn_to
