"""The network of ByzFL's MNIST examples."""

from __future__ import annotations

from torch import nn


def convolutional(features: tuple[int, ...], width: int) -> nn.Module:
    """Two convolutions of 5 x 5, pooled, and two linear layers, 431,080 numbers (`cnn_mnist`)."""
    return nn.Sequential(
        nn.Conv2d(features[0], 20, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(20, 50, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(800, 500),
        nn.ReLU(),
        nn.Linear(500, width),
    )
