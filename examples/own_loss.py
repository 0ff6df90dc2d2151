"""Train with a loss of your own: wrong labels at some clients, and a loss that they cannot pull far.

    python examples/own_loss.py

Half of the clients have 60 % of their labels drawn by lot. The cross-entropy of a wrong label grows without end, so
training learns these, too. `bounded` grows to 1/q at most (Zhang and Sabuncu, "Generalized cross entropy loss for
training deep neural networks with noisy labels", NeurIPS 2018). Every client is tested on the same right labels.

A loss gives one number for each sample. Coterie takes the mean over them: it knows which rows of a batch are padding,
and which samples have weights. A loss that takes the mean itself is refused before training, and so is one whose
samples depend on each other. On the command line the same loss is `--loss own_loss:bounded`, in this folder.
"""

import numpy as np
from sklearn.datasets import load_digits
from torch import Tensor

import coterie

CLIENTS, ROUNDS, WRONG, Q = 10, 30, 0.6, 0.7


def bounded(outputs: Tensor, targets: Tensor) -> Tensor:
    """(1 - p^q) / q, where p is the probability of the label: [sample] of outputs [sample, class] and labels [sample].

    For q to 0 this is the cross-entropy, for q = 1 the mean absolute error.
    """
    p = outputs.softmax(dim=-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return (1 - p**Q) / Q


def data() -> tuple[coterie.Dataset, list[np.ndarray]]:
    """The digits with wrong labels at every second client, right ones for testing, and who has which samples."""
    rng = np.random.default_rng(0)
    x, y = load_digits(return_X_y=True)
    order = rng.permutation(len(x))
    x, y = (x[order] / 16).astype(np.float32), y[order]
    test, x, labels = coterie.Dataset(x[:500], y[:500]), x[500:], y[500:].copy()
    clients = np.array_split(np.arange(len(x)), CLIENTS)
    for own in clients[::2]:
        wrong = own[rng.random(len(own)) < WRONG]
        labels[wrong] = rng.integers(0, 10, len(wrong))
    return coterie.Dataset(x, labels, test=test), clients


def main() -> None:
    """Train with each loss, and print how often the served model is right."""
    samples, clients = data()
    print(f"{'loss':<16}{'accuracy':>10}")
    for name, loss in (("cross-entropy", None), ("bounded", bounded)):
        fed = coterie.simulate(samples, clients, "mlp", loss=loss, test="global", workers=0)
        found = coterie.FedAvg(rounds=ROUNDS, epochs=5, rate=0.3, batch=16).fit(fed).summary
        print(f"{name:<16}{100 * found['accuracy_mean']:>10.1f}")


if __name__ == "__main__":
    main()
