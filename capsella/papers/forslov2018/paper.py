"""Numbers printed in Forslöv's thesis (2018); accuracies are proportions, as in the thesis."""

# The thesis's names of the networks, by their part of a registered name, in the order of the tables.
NETWORKS = {
    "capsnet1": "CAPSNET 1",
    "capsnet2": "CAPSNET 2",
    "emnet1": "EM-NET 1",
    "emnet2": "EM-NET 2",
    "cnnnet1": "CNN-NET 1",
    "cnnnet2": "CNN-NET 2",
    "cnnnet3": "CNN-NET 3",
}

FAMILIES = {"capsnet": "dynamic routing", "emnet": "EM routing", "cnnnet": "CNN"}

# The training sets in the order of Table 3's columns.
SETS = ("mini", "small", "medium-size", "basic", "medium", "hard")

# Training images of the sets of Figure 31, by its text; for hard, Table 1 adds up to 26,991.
SET_IMAGES = {"mini": 1500, "small": 4500, "medium-size": 12963, "hard": 24881}

# Classes of the sets of Figure 32 (Table 1).
SET_CLASSES = {"basic": 5, "medium": 10, "hard": 15}

# Table 3: the best test accuracy of each network and INIT-NET on each of `SETS`.
ACCURACY = {
    ("capsnet1", 1): (0.620, 0.713, 0.708, 0.884, 0.859, 0.732),
    ("capsnet1", 2): (0.515, 0.634, 0.663, 0.892, 0.849, 0.597),
    ("capsnet2", 1): (0.636, 0.694, 0.627, 0.907, 0.829, 0.674),
    ("capsnet2", 2): (0.578, 0.428, 0.566, 0.901, 0.780, 0.639),
    ("emnet1", 1): (0.584, 0.658, 0.741, 0.926, 0.861, 0.740),
    ("emnet1", 2): (0.547, 0.608, 0.688, 0.907, 0.855, 0.731),
    ("emnet2", 1): (0.586, 0.526, 0.660, 0.915, 0.809, 0.678),
    ("emnet2", 2): (0.451, 0.542, 0.675, 0.884, 0.812, 0.714),
    ("cnnnet1", 1): (0.434, 0.388, 0.358, 0.793, 0.750, 0.253),
    ("cnnnet1", 2): (0.377, 0.430, 0.304, 0.869, 0.623, 0.400),
    ("cnnnet2", 1): (0.570, 0.663, 0.689, 0.911, 0.819, 0.557),
    ("cnnnet2", 2): (0.509, 0.543, 0.483, 0.809, 0.455, 0.645),
    ("cnnnet3", 1): (0.542, 0.316, 0.599, 0.804, 0.856, 0.772),
    ("cnnnet3", 2): (0.431, 0.538, 0.455, 0.891, 0.865, 0.760),
}

# Table 4: test accuracy under translation, rotation (with flips) and noise, after training on hard.
ROBUSTNESS = {
    ("capsnet1", 1): (0.282, 0.727, 0.463),
    ("capsnet1", 2): (0.150, 0.597, 0.264),
    ("capsnet2", 1): (0.241, 0.671, 0.511),
    ("capsnet2", 2): (0.211, 0.633, 0.326),
    ("emnet1", 1): (0.504, 0.738, 0.711),
    ("emnet1", 2): (0.414, 0.721, 0.709),
    ("emnet2", 1): (0.284, 0.674, 0.657),
    ("emnet2", 2): (0.271, 0.708, 0.710),
    ("cnnnet1", 1): (0.100, 0.251, 0.194),
    ("cnnnet1", 2): (0.112, 0.399, 0.397),
    ("cnnnet2", 1): (0.187, 0.559, 0.512),
    ("cnnnet2", 2): (0.222, 0.633, 0.642),
    ("cnnnet3", 1): (0.391, 0.762, 0.758),
    ("cnnnet3", 2): (0.300, 0.752, 0.572),
}

# Table 5, by (network, has a decoder), behind INIT-NET 1: seconds for forward and backward of a batch of 5, on an
# i7-7700 and on a GTX 1050 Ti.
TIMES = {
    ("capsnet1", False): (0.83, 0.17),
    ("capsnet2", False): (2.62, 0.55),
    ("capsnet1", True): (2.79, 0.25),
    ("capsnet2", True): (4.63, 0.67),
    ("emnet1", False): (0.84, 0.12),
    ("emnet2", False): (2.79, 0.12),
    ("cnnnet1", False): (0.11, 0.09),
    ("cnnnet2", False): (0.16, 0.10),
    ("cnnnet3", False): (0.13, 0.09),
}

# The CNN-NET with the same shape as a capsule network (§8.2.1).
COUNTERPART = {"capsnet1": "cnnnet3", "emnet1": "cnnnet3", "capsnet2": "cnnnet2", "emnet2": "cnnnet2"}

# Pose elements of a class capsule, the input of DECODER NET: CT in Table 2.
CAPSULE_THICKNESS = {"capsnet": 96, "emnet": 16}

# Table 2, by part, without biases: a number of weights, and further ones per class (for the decoder: per CT). Networks
# are counted without the INIT-NET before them.
WEIGHTS = {
    "init1": (334_401, 0),
    "init2": (360_226, 0),
    "cnnnet1": (2_563_000, 60),
    "cnnnet2": (13_221_888, 128),
    "cnnnet3": (10_354_688, 256),
    "capsnet1": (5_308_416, 49_152),
    "capsnet2": (7_667_712, 49_152),
    "emnet1": (349_184, 512),
    "emnet2": (496_640, 512),
    "decoder": (4_521_252, 675),
}


def family(network: str) -> str:
    """Return the family of a network, given by its part of a registered name.

    >>> family("capsnet2")
    'capsnet'
    """
    return network.rstrip("12345")
