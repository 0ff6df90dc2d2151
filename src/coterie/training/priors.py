"""How frequent labels are at a client, kept beside a model instead of in it.

With pi(y) the share of label y among a client's training samples, a model f is trained on the cross-entropy of
f(x) + log pi (balanced softmax: Ren et al., NeurIPS 2020; logit adjustment: Menon et al., ICLR 2021), and the client
predicts with f(x) + log pi (Saerens et al., 2002). So f need not know how frequent labels are, and fits clients with
other shares.

Shares are smoothed, pi(y) = (n_y + s) / (n + s C), so that no label is impossible. Only differences between outputs
matter: what is added is log((n_y + s) / (max n + s)), which is the same but for a constant, and which is exactly 0 for
all labels where all are equally frequent. Such a client computes to the last bit what it does without a prior.
"""

from torch import Tensor


def log_prior(counts: Tensor, smoothing: float) -> Tensor:
    """What is added to outputs [..., class], from counts of labels [..., class]: 0 for the most frequent ones.

    >>> from coterie.training.priors import log_prior
    >>> log_prior(torch.tensor([4, 0, 4]), 0.5).tolist()  # log(0.5 / 4.5)
    [0.0, -2.1972245773362196, 0.0]
    """
    smoothed = counts.double() + smoothing
    return (smoothed / smoothed.amax(dim=-1, keepdim=True)).log()
