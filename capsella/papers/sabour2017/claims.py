"""What Sabour, Frosst, Hinton 2017 claim of rows of their tables."""

from capsella.papers.kinds.claim import Claim
from capsella.papers.sabour2017.paper import AFFNIST, TABLE_1

_BEST = TABLE_1["MNIST", "CapsNet", 3, True][0]
_BEST_OF_PAIRS = TABLE_1["MultiMNIST", "CapsNet", 3, True][0]

CLAIMS = (
    Claim(
        text="On MNIST, three iterations of routing beat one (with reconstruction).",
        where="sabour2017-1",
        better="mnist-3-yes",
        worse="mnist-1-yes",
        paper=(_BEST, TABLE_1["MNIST", "CapsNet", 1, True][0]),
    ),
    Claim(
        text="On MNIST, reconstruction helps (with three iterations).",
        where="sabour2017-1",
        better="mnist-3-yes",
        worse="mnist-3-no",
        paper=(_BEST, TABLE_1["MNIST", "CapsNet", 3, False][0]),
    ),
    Claim(
        text="On MNIST, reconstruction helps with one iteration, too.",
        where="sabour2017-1",
        better="mnist-1-yes",
        worse="mnist-1-no",
        paper=(TABLE_1["MNIST", "CapsNet", 1, True][0], TABLE_1["MNIST", "CapsNet", 1, False][0]),
    ),
    Claim(
        text="On MNIST, CapsNet beats the CNN.",
        where="sabour2017-1",
        better="mnist-3-yes",
        worse="mnist-cnn",
        paper=(_BEST, TABLE_1["MNIST", "CNN", None, None][0]),
    ),
    Claim(
        text="On digits over one another, three iterations of routing beat one.",
        where="sabour2017-1",
        better="multimnist-3-yes",
        worse="multimnist-1-yes",
        paper=(_BEST_OF_PAIRS, TABLE_1["MultiMNIST", "CapsNet", 1, True][0]),
    ),
    Claim(
        text="On digits over one another, CapsNet beats the CNN.",
        where="sabour2017-1",
        better="multimnist-3-yes",
        worse="multimnist-cnn",
        paper=(_BEST_OF_PAIRS, TABLE_1["MultiMNIST", "CNN", None, None][0]),
    ),
    Claim(
        text="Of networks that are equally good on plain digits, CapsNet errs less under affine maps than the CNN.",
        where="sabour2017-affnist",
        better="capsnet",
        worse="cnn",
        paper=(AFFNIST["CapsNet"][1], AFFNIST["CNN"][1]),
        on="affine",
    ),
)
"""Each is decided by two rows of one table."""
