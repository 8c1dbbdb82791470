"""Capsules around a grid that are not there."""

from torch import nn
from torch.nn.functional import pad

from capsella.errors import at_least
from capsella.types import Capsules


class PadCapsules(nn.Module):
    """Surround a grid with capsules of activation zero and pose zero, as padded convolutions do with pixels.

    Shapes: Capsules(poses [b h w c d], activations [b h w c]) → the same with h + 2·width rows, w + 2·width columns.
    """

    def __init__(self, width: int = 1) -> None:
        super().__init__()
        at_least(1, width=width)
        self.width = width

    def forward(self, capsules: Capsules) -> Capsules:
        """The padded grid."""
        n = self.width
        return Capsules(pad(capsules.poses, (0, 0, 0, 0, n, n, n, n)), pad(capsules.activations, (0, 0, n, n, n, n)))
