"""Registered networks. Each is a function whose keyword arguments are the network's hyper-parameters.

A trained network may have a `calibration` and an `ood_detector`, see `capsella.uncertainty`. `backbones` reuses the
first layers of a trained network.
"""

from capsella.models import (
    backbones,
    forslov2018,
    hahn2019,
    he2016,
    heinsen2019,
    hinton2018,
    mazzia2021,
    ribeiro2020,
    routing_benchmark,
    sabour2017,
    tsai2020,
    zhao2021,
)  # registers the networks
from capsella.models.base import (
    ImageClassifier,
    count_parameters,
    create_model,
    list_models,
    model_function,
    register_model,
)
from capsella.models.classifiers import CapsuleClassifier, ConvolutionalClassifier
from capsella.models.hinton2018 import MultiCrop
