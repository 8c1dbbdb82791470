"""What Sabour, Frosst, Hinton 2017 print: test errors in per cent."""

TABLE_1 = {
    ("MNIST", "CNN", None, None): (0.39, None),
    ("MNIST", "CapsNet", 1, False): (0.34, 0.032),
    ("MNIST", "CapsNet", 1, True): (0.29, 0.011),
    ("MNIST", "CapsNet", 3, False): (0.35, 0.036),
    ("MNIST", "CapsNet", 3, True): (0.25, 0.005),
    ("MultiMNIST", "CNN", None, None): (8.1, None),
    ("MultiMNIST", "CapsNet", 1, True): (7.5, None),
    ("MultiMNIST", "CapsNet", 3, True): (5.2, None),
}
"""Data, network, iterations, with reconstruction: the error, and its standard deviation over three trainings."""

AFFNIST = {"CapsNet": (0.77, 21.0), "CNN": (0.78, 34.0)}
"""§5.2: the error on plain digits at which each network was stopped, and under affine maps."""

OTHERS = {"CIFAR-10": 10.6, "smallNORB": 2.7, "SVHN": 4.3}
"""§7; CIFAR-10's is of seven networks together."""
