"""Fine-tune a pretrained net with low-rank adapters: the net stays where it is, only the adapters travel.

    python examples/low_rank.py

A backbone learns the digits 0 to 4 in one place and is stored in a file. Ten clients have the digits 5 to 9, each a
mixture of its own. All build the same net around the stored backbone, freeze it (`requires_grad_(False)`), and train
small adapters beside its layers and a new head (LoRA: Hu et al., ICLR 2022). Coterie leaves frozen parameters out of
all that is sent, averaged and stored. For comparison, the table also has the head alone and the whole net fine-tuned.
"""

import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_digits
from torch import Tensor, nn

import coterie

WIDTH, RANK, CLIENTS, ROUNDS = 256, 4, 10, 20


def backbone() -> nn.Sequential:
    """The layers before the head."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU())


def pretrain(x: Tensor, y: Tensor, file: Path) -> None:
    """Train a backbone in one place, and store it."""
    torch.manual_seed(0)
    body, head = backbone(), nn.Linear(WIDTH, 5)
    optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], 1e-3)
    for _ in range(100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(head(body(x)), y).backward()
        optimizer.step()
    save_file(body.state_dict(), file)


class Adapted(nn.Module):
    """A frozen layer with an adapter beside it: W x + b + B A x, where A and B have few rows and columns."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)  # it begins as the layer alone

    def forward(self, x: Tensor) -> Tensor:
        """Compute the layer's output, with the adapter's added."""
        return self.layer(x) + self.up(self.down(x))


def net(shape: tuple[int, ...], classes: int, file: Path, trained: str) -> nn.Module:
    """The stored backbone with a new head, of which the head is trained, and adapters or the backbone with it."""
    body = backbone()
    body.load_state_dict(load_file(file))
    body.requires_grad_(trained == "everything")
    if trained == "adapters":
        body[1], body[3] = Adapted(body[1], RANK), Adapted(body[3], RANK)
    return nn.Sequential(body, nn.Linear(WIDTH, classes))


def main() -> None:
    """Pretrain, fine-tune in three ways, and print what each sends and how well it does."""
    x, y = load_digits(return_X_y=True)
    x, first = (x / 16).astype(np.float32), y < 5
    data = coterie.Dataset(x[~first], y[~first] - 5, labels=tuple("56789"))
    print(f"{'what is trained':<16}{'trained':>9}{'frozen':>9}{'kB a client and round':>24}{'accuracy':>10}")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "backbone.safetensors"
        pretrain(torch.from_numpy(x[first]), torch.from_numpy(y[first]), file)
        for trained in ("head", "adapters", "everything"):
            made = partial(net, file=file, trained=trained)
            fed = coterie.simulate(data, "dirichlet", made, clients=CLIENTS, alpha=0.3, scaling="none", workers=0)
            found = coterie.FedAvg(rounds=ROUNDS, rate=0.1, batch=16).fit(fed).summary
            sent = sum(found["ledger"][way]["model"] for way in ("up", "down")) / CLIENTS / ROUNDS / 1000
            size = f"{found['parameters']:>9,}{found.get('frozen_parameters', 0):>9,}"
            print(f"{trained:<16}{size}{sent:>24.1f}{100 * found['accuracy_mean']:>10.1f}")


if __name__ == "__main__":
    main()
