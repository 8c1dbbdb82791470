"""Pretrained backbones: the layers of a trained network that compute feature maps, reused by another network."""

from capsella.models.backbones.backbone import Backbone, BackboneDescription, find_backbone
