"""Registered networks: each a function whose body is its hyper-parameters."""

from capsella.models import (  # noqa: F401  (importing them registers their models)
    capsnet,
    cnn,
    efficient_capsnet,
    forslov2018,
    matrix_capsnet,
    resnet,
)
from capsella.models.base import (
    ImageClassifier,
    count_parameters,
    create_model,
    list_models,
    model_function,
    register_model,
)
from capsella.models.classifiers import CapsuleClassifier, ConvolutionalClassifier
from capsella.models.multi_crop import MultiCrop

__all__ = [
    "CapsuleClassifier",
    "ConvolutionalClassifier",
    "ImageClassifier",
    "MultiCrop",
    "count_parameters",
    "create_model",
    "list_models",
    "model_function",
    "register_model",
]
