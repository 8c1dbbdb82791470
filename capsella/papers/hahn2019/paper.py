"""What Hahn, Pyeon, Kim 2019 print, by the poster beside their code: test errors in per cent."""

CIFAR10 = {"self": 7.86, "dynamic": 7.86, "em": 12.52}
"""Of ResNet-20 with two capsule layers in place of its average pooling, by routing; with the pooling 7.94."""

VIEWPOINTS = {
    ("azimuth", "self"): 19.9,
    ("azimuth", "dynamic"): 20.3,
    ("azimuth", "em"): 20.2,
    ("elevation", "self"): 15.9,
    ("elevation", "dynamic"): 16.4,
    ("elevation", "em"): 17.5,
}
"""smallNORB, on novel viewpoints; with average pooling 21.8 and 17.7."""

MILLIONS_OF_PARAMETERS = {"self": 3.2, "dynamic": 4.2, "em": 0.8}
"""Of the networks for CIFAR-10."""
