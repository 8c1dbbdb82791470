"""What Hinton, Sabour, Frosst 2018 print: test errors in per cent."""

TABLE_1 = {
    (1, "matrix", "spread", True): 9.7,
    (2, "matrix", "spread", True): 2.2,
    (3, "matrix", "spread", True): 1.8,
    (5, "matrix", "spread", True): 3.9,
    (3, "vector", "spread", True): 2.9,
    (3, "matrix", "spread", False): 2.6,
    (3, "vector", "spread", False): 3.2,
    (3, "matrix", "margin", True): 3.2,
    (3, "matrix", "cross_entropy", True): 5.8,
}
"""smallNORB: iterations, pose, loss, with coordinate addition."""

CNN = 5.2
"""smallNORB: the convolutional network of 4.2 M parameters."""

SEVERAL_CROPS = 1.4
"""Table 1's best network, averaged over several cuts of each image."""

VIEWPOINTS = {
    ("azimuth", "capsules"): (3.7, 13.5),
    ("azimuth", "CNN"): (3.7, 20.0),
    ("elevation", "capsules"): (4.3, 12.3),
    ("elevation", "CNN"): (4.3, 17.8),
}
"""§5.1: on familiar viewpoints, the CNN's error, at which the capsules were stopped, and on novel ones."""

OTHERS = {"MNIST": 0.44, "CIFAR-10": 11.9, "NORB with clutter": 2.6}
"""§5."""
