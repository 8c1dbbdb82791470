"""What Hahn, Pyeon, Kim 2019 print, by the poster beside their code: test errors in per cent."""

POOLING = "average pooling"
CIFAR10 = {"self": 7.86, "dynamic": 7.86, "em": 12.52, POOLING: 7.94}
"""Of ResNet-20 with two capsule layers, by their routing, or with its average pooling."""

VIEWPOINTS = {
    ("azimuth", "self"): 19.9,
    ("azimuth", "dynamic"): 20.3,
    ("azimuth", "em"): 20.2,
    ("azimuth", POOLING): 21.8,
    ("elevation", "self"): 15.9,
    ("elevation", "dynamic"): 16.4,
    ("elevation", "em"): 17.5,
    ("elevation", POOLING): 17.7,
}
"""smallNORB, on novel viewpoints."""

MILLIONS_OF_PARAMETERS = {"self": 3.2, "dynamic": 4.2, "em": 0.8, POOLING: 0.3}
"""Of the networks for CIFAR-10."""
