import pytest
import torch

from capsella.data import ImageSet
from capsella.models import create_model

# The least size the two 9×9 kernels of the network allow.
SIZE = 17
NAMES = ("round", "<b>&amp;</b>", "$\\bad{")


@pytest.fixture(scope="session")
def capsnet():
    torch.manual_seed(0)
    model = create_model("sabour2017_capsnet", image_size=SIZE, channels=1, classes=NAMES)
    for parameter in model.capsule_layers.parameters():
        parameter.data *= 30  # fresh weights make votes so short that routing hardly moves
    for parameter in model.decoder.parameters():
        parameter.data *= 4  # and drawings that hardly depend on them
    return model


@pytest.fixture(scope="session")
def plain_capsnet():
    torch.manual_seed(0)
    return create_model("sabour2017_capsnet", image_size=SIZE, channels=1, classes=NAMES, reconstruction=False)


@pytest.fixture(scope="session")
def matrix_capsnet():
    torch.manual_seed(0)
    return create_model("hinton2018_matrix_capsnet_small", image_size=SIZE, channels=1, classes=NAMES)


@pytest.fixture(scope="session")
def cnn():
    torch.manual_seed(0)
    return create_model("sabour2017_cnn", image_size=SIZE, channels=1, classes=NAMES)


@pytest.fixture
def image_set():
    images = torch.randint(0, 256, (12, 1, SIZE, SIZE), dtype=torch.uint8)
    files = tuple(f"<i>{index}</i>.png" for index in range(12))
    return ImageSet(images, torch.arange(12) % 3, NAMES, files)
