"""Parameters layer by layer, as the papers and their authors' code have them."""

import pytest
import torch
from torch import nn

from capsella.models import ImageClassifier, count_parameters, create_model

POSE = 16


def layer_counts(module: nn.Module) -> list[int]:
    """Parameters of each module that has any of its own, in order."""
    own = [sum(p.numel() for p in layer.parameters(recurse=False)) for layer in module.modules()]
    return [count for count in own if count]


def on_meta(name: str, **options: object) -> ImageClassifier:
    """Make a network without memory."""
    with torch.device("meta"):
        return create_model(name, **options)


def conv(kernel: int, before: int, after: int) -> int:
    return kernel**2 * before * after + after


def normalised(kernel: int, before: int, after: int) -> list[int]:
    """A convolution without bias, and a scale and a shift for each channel."""
    return [kernel**2 * before * after, 2 * after]


def block(before: int, after: int, projection: bool) -> list[int]:
    """A residual block."""
    shortcut = normalised(1, before, after) if projection and before != after else []
    return [*normalised(3, before, after), *normalised(3, after, after), *shortcut]


def stack(widths: list[int]) -> list[int]:
    pairs = zip(widths[:-1], widths[1:], strict=True)
    return [count for before, after in pairs for count in normalised(3, before, after)]


DECODER = [10 * 16 * 512 + 512, 512 * 1024 + 1024, 1024 * 784 + 784]
SELF_ROUTED = 32 * (16 + 1)
RESNET20 = [
    *normalised(3, 3, 16),
    *[
        count
        for pair in [(16, 16)] * 3 + [(16, 32)] + [(32, 32)] * 2 + [(32, 64)] + [(64, 64)] * 2
        for count in block(*pair, False)
    ],
]
CONVNET = stack([1, 16, 32, 32, 64, 64, 128])
LAYERS = {
    "sabour2017_capsnet": [conv(9, 1, 256), conv(9, 256, 32 * 8), 6 * 6 * 32 * 10 * 8 * 16, *DECODER],
    "sabour2017_cnn": [
        *(conv(5, 1, 256), conv(5, 256, 256), conv(5, 256, 128)),
        *(28 * 28 * 128 * 328 + 328, 328 * 192 + 192, 192 * 10 + 10),
    ],
    "sabour2017_multimnist_cnn": [conv(9, 1, 512), conv(5, 512, 256), 9 * 9 * 256 * 1024 + 1024, 1024 * 10 + 10],
    # A = B = C = D = 32, and A = 64, B = 8, C = D = 16; β_u and β_a of each type
    "hinton2018_matrix_capsnet": [
        *(conv(5, 1, 32), conv(1, 32, 32 * 17), 9 * 32 * 32 * POSE, 2 * 32, 9 * 32 * 32 * POSE, 2 * 32),
        *(32 * 5 * POSE, 2 * 5),
    ],
    "hinton2018_matrix_capsnet_small": [
        *(conv(5, 1, 64), conv(1, 64, 8 * 17), 9 * 8 * 16 * POSE, 2 * 16, 9 * 16 * 16 * POSE, 2 * 16),
        *(16 * 5 * POSE, 2 * 5),
    ],
    "mazzia2021_efficient_capsnet": [
        *(conv(5, 1, 32), 2 * 32, conv(3, 32, 64), 2 * 64, conv(3, 64, 64), 2 * 64, conv(3, 64, 128), 2 * 128),
        9 * 9 * 128 + 128,  # depthwise
        *(16 * 10 * 8 * 16, 16 * 10),  # the second is the prior
        *DECODER,
    ],
    "hahn2019_resnet20": [
        *RESNET20,
        *normalised(3, 64, SELF_ROUTED),  # poses and activations
        9 * 32 * 32 * 16 * 16,  # W of the votes
        9 * 32 * 32 * (16 + 1),  # w and b of the couplings
        2 * 32 * 16,
        16 * 32 * 10 * (16 + 1),  # class capsules have no votes
    ],
    "hahn2019_convnet": [*CONVNET, *normalised(3, 128, SELF_ROUTED), 16 * 32 * 5 * (16 + 1)],
    "hahn2019_resnet20_cnn": [*RESNET20, 64 * 10 + 10],
    "hahn2019_convnet_cnn": [*CONVNET, 128 * 5 + 5],
    "tsai2020_resnet": [
        *normalised(3, 3, 64),
        *[count for pair in [(64, 64)] * 3 + [(64, 128)] + [(128, 128)] * 3 for count in block(*pair, True)],
        *(128 * 32 * 16, 2 * 16),  # primary capsules, and their layer normalisation
        *(9 * 32 * 32 * 4 * 4, 2 * 16) * 2,
        *(5 * 5 * 32 * 10 * 4 * 4, 2 * 16),
        16 + 1,  # the linear unit of all classes
    ],
    "zhao2021_cluster_capsnet": [
        *(4 * (9 * 2 + 1) * 4 * 8 * 24, 2 * 24 * 32 * 32),
        *(4 * (9 * 24 + 1) * 4 * 8 * 24, 2 * 24 * 16 * 16) * 2,
        *(4 * (9 * 24 + 1) * 4 * 8 * 24, 2 * 24 * 8 * 8, 4 * (9 * 24 + 1) * 5 * 8 * 24, 2 * 24 * 8 * 8),
        24 * 8 * 8 + 1,
    ],
    "he2016_resnet10": [
        *normalised(7, 3, 24),
        *[count for pair in [(24, 24), (24, 48), (48, 96), (96, 192)] for count in block(*pair, True)],
        192 * 15 + 15,
    ],
    "ribeiro2020_capsnet": [
        *normalised(5, 1, 64),
        *(64 * 8 * 17, 2 * 8, 2 * 8),  # a scale and a shift for each type, of poses and of activations
        *(9 * 8 * 16 * POSE, 9 * 16 * 16 * POSE, 16 * 5 * POSE),
    ],
    "batchnorm_matrix_capsnet": [
        *(normalised(3, 1, 32) + normalised(3, 32, 64) + normalised(3, 64, 64)),
        *(64 * 8 * 17, 2 * 8, 2 * 8),
        *(9 * 8 * 16 * POSE, 2 * 16, 9 * 16 * 16 * POSE, 2 * 16, 16 * 5 * POSE, 2 * 5),
    ],
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str) -> None:
    assert layer_counts(on_meta(name)) == LAYERS[name]


def test_layers_of_heinsen2019() -> None:
    model = on_meta("heinsen2019_capsnet", channels=2)
    assert [count_parameters(part) for part in [model.backbone, model.primary, *model.capsule_layers]] == [
        2 * 4 + conv(3, 4, 64) + 5 * (2 * 64 + conv(3, 64, 64)),
        2 * 2 * 64 + conv(1, 64, 64) + conv(1, 64, 1024),
        64 * (16 + 16 + 2),  # W, B and both β of each part, shared by all children
        64 * 5 * (16 + 16 + 2),
    ]


@pytest.mark.parametrize(
    ("name", "options", "count"),
    [
        ("sabour2017_capsnet", {"reconstruction": False}, 6_804_224),  # 6.8 M
        ("sabour2017_capsnet", {"image_size": 36}, 11_361_808),  # 11.36 M, MultiMNIST
        ("hinton2018_cnn", {}, 4_252_549),  # "4.2 M"
        ("mazzia2021_efficient_capsnet", {"reconstruction": False}, 161_824),  # "161 K"
        ("mazzia2021_efficient_capsnet", {"reconstruction": False, "for_pairs": True, "image_size": 36}, 154_656),
        ("mazzia2021_depthwise_linear", {}, 161_824 - 16 * 10 * (8 * 16 + 1) + 129 * 10),
        ("mazzia2021_average_pooling", {}, 161_824 - 16 * 10 * (8 * 16 + 1) + 129 * 10 - 82 * 128),
        ("hahn2019_resnet20", {"layers": 1}, 931_664),  # "0.9 M" of their poster
        ("ribeiro2020_capsnet", {"channels": 2}, 68_714 - 2 * (16 + 16 + 5)),  # without β before a normalisation
        ("heinsen2019_capsnet", {"channels": 2}, 271_688),  # "272 K"
        ("heinsen2019_capsnet", {"channels": 2, "image_size": 64}, 271_688),
    ],
)
def test_totals(name: str, options: dict[str, object], count: int) -> None:
    assert count_parameters(on_meta(name, **options)) == count
