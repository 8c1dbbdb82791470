"""What Hinton, Sabour, Frosst 2018 claim of rows of their tables."""

from capsella.papers.hinton2018.paper import CNN, TABLE_1, VIEWPOINTS
from capsella.papers.hinton2018.tables import NIGHT_CNN_RATES, NIGHT_RATES
from capsella.papers.kinds.claim import Claim

_BEST = "3-matrix-spread-yes-routed"
_BEST_ERROR = TABLE_1[3, "matrix", "spread", True]
_EVEN = "1-matrix-spread-yes-uniform"
_LESS = (
    ("Three iterations of routing beat two.", "2-matrix-spread-yes-routed", (2, "matrix", "spread", True)),
    ("Three iterations of routing beat five.", "5-matrix-spread-yes-routed", (5, "matrix", "spread", True)),
    ("Matrix poses beat vector poses.", "3-vector-spread-yes-routed", (3, "vector", "spread", True)),
    ("Coordinate addition helps.", "3-matrix-spread-no-routed", (3, "matrix", "spread", False)),
    ("The spread loss beats the margin loss.", "3-matrix-margin-yes-routed", (3, "matrix", "margin", True)),
    (
        "The spread loss beats cross-entropy.",
        "3-matrix-cross_entropy-yes-routed",
        (3, "matrix", "cross_entropy", True),
    ),
)

CLAIMS = (
    Claim(
        text="Three iterations of routing beat even couplings.",
        where="hinton2018-1",
        better=_BEST,
        worse=_EVEN,
        paper=(_BEST_ERROR, TABLE_1[1, "matrix", "spread", True]),
        better_rates=tuple(f"{_BEST}-rate{rate:g}" for rate in NIGHT_RATES),
        worse_rates=tuple(f"{_EVEN}-rate{rate:g}" for rate in NIGHT_RATES),
    ),
    Claim(
        text="Matrix capsules err less than the CNN of 4.2 M parameters.",
        where="hinton2018-1",
        better=_BEST,
        worse="cnn",
        paper=(_BEST_ERROR, CNN),
        better_rates=tuple(f"{_BEST}-rate{rate:g}" for rate in NIGHT_RATES),
        worse_rates=tuple(f"cnn-rate{rate:g}" for rate in NIGHT_CNN_RATES),
    ),
    *(
        Claim(text=text, where="hinton2018-1", better=_BEST, worse=slug, paper=(_BEST_ERROR, TABLE_1[row]))
        for text, slug, row in _LESS
    ),
    *(
        Claim(
            text=f"Of networks that are equally good on familiar viewpoints, capsules err less on new {by}s than the "
            "CNN.",
            where="hinton2018-viewpoints",
            better=by,
            worse=f"{by}-cnn",
            paper=(VIEWPOINTS[by, "capsules"][1], VIEWPOINTS[by, "CNN"][1]),
            on="novel",
        )
        for by in ("azimuth", "elevation")
    ),
)
"""Each is decided by two rows of one table."""
