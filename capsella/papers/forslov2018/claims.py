"""What Forslöv's thesis (2018) claims of rows of its tables; accuracies there are errors here."""

from capsella.papers.forslov2018.paper import ACCURACY, NETWORKS, SETS
from capsella.papers.kinds.claim import Claim


def _claim(text: str, of: str, better: str, worse: str) -> Claim:
    """Of Table 3: one network behind INIT-NET 1 against another on one set."""
    errors = [round(100 * (1 - ACCURACY[network, 1][SETS.index(of)]), 1) for network in (better, worse)]
    return Claim(
        text=f"{text} ({NETWORKS[better]} against {NETWORKS[worse]}, the thesis's best of each kind there).",
        where="forslov2018-table3",
        better=f"{of}-{better}-init1",
        worse=f"{of}-{worse}-init1",
        paper=(errors[0], errors[1]),
    )


CLAIMS = (
    _claim("From 100 images a class, capsules learn more than CNNs", "mini", "capsnet2", "cnnnet2"),
    _claim("From 300 images a class, capsules learn more than CNNs", "small", "capsnet1", "cnnnet2"),
    _claim("On five classes, EM routing beats the CNNs", "basic", "emnet1", "cnnnet2"),
    _claim("On five classes, EM routing beats dynamic routing", "basic", "emnet1", "capsnet2"),
    Claim(
        text="Reconstruction helps CAPSNET 1.",
        where="forslov2018-37",
        better="mini-capsnet1-init1-decoder",
        worse="mini-capsnet1-init1-no-decoder",
        paper=None,
    ),
)
"""Each is decided by two rows of one table or figure."""
