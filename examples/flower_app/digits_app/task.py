"""The app's own business: a net, data, training and testing."""

from functools import cache

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from sklearn.datasets import load_digits
from sklearn.utils import Bunch
from torch import Tensor, nn


class Net(nn.Module):
    """A small net for images of 8x8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(64, 32)
        self.norm = nn.BatchNorm1d(32)
        self.head = nn.Linear(32, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Ten numbers for each image."""
        return self.head(F.relu(self.norm(self.hidden(images))))


@cache
def _digits() -> Bunch:
    return load_digits()


def load_data(partition: int, partitions: int, part: str) -> tuple[Tensor, Tensor]:
    """One client's images and labels. Clients with an odd number have a scanner that turns images by 90 degrees."""
    digits = _digits()
    own = np.random.default_rng(0).permutation(len(digits.images))[partition::partitions]
    test = int(0.2 * len(own))
    chosen = own[:test] if part == "test" else own[test:]
    images = np.rot90(digits.images[chosen], partition % 2, axes=(1, 2)).reshape(-1, 64) / 16
    return torch.tensor(images, dtype=torch.float32), torch.tensor(digits.target[chosen])


def train(net: Net, images: Tensor, labels: Tensor, epochs: int, rate: float, seed: int) -> float:
    """Train by SGD on batches of 16; the mean loss of the last epoch."""
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    orders = torch.Generator().manual_seed(seed)
    net.train()
    losses: list[float] = []
    for _ in range(epochs):
        losses.clear()
        for batch in torch.randperm(len(labels), generator=orders).split(16):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


@torch.no_grad()
def test(net: Net, images: Tensor, labels: Tensor) -> tuple[float, float]:
    """Loss and accuracy."""
    net.eval()
    outputs = net(images)
    return F.cross_entropy(outputs, labels).item(), (outputs.argmax(dim=1) == labels).float().mean().item()
