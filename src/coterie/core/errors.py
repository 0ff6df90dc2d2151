"""Errors whose messages say which setting or thing is wrong, its value, and what to do."""

from collections.abc import Iterable
from difflib import get_close_matches


class CoterieError(Exception):
    """Base of every error that Coterie raises on purpose; the command line prints it without a traceback.

    >>> try:
    ...     coterie.FedAvg(participation=1.5)
    ... except coterie.CoterieError as error:
    ...     print(error)
    participation=1.5: a fraction in (0, 1]; use 1.0 for all clients
    """


class SettingsError(CoterieError, ValueError):
    """A setting is unknown, out of range or does not fit the others."""


class DataError(CoterieError):
    """Data is missing, damaged or does not fit the task."""


class NoAnswerError(CoterieError):
    """No client answered."""


class ProgramError(CoterieError):
    """A program failed on a client; the message names the client and the cause is chained."""


CALLED_HERE = {
    **dict.fromkeys(("lr", "learning_rate", "local_lr", "client_lr", "eta", "step_size"), "rate"),
    **dict.fromkeys(("lr_decay", "learning_rate_decay"), "rate_decay"),
    **dict.fromkeys(("lr_schedule", "lr_scheduler", "scheduler"), "schedule"),
    **dict.fromkeys(("n_clients", "num_clients", "number_of_clients", "n_parties", "num_users"), "clients"),
    **dict.fromkeys(("batch_size", "local_bs", "bs", "minibatch"), "batch"),
    **dict.fromkeys(("n_epochs", "num_epochs", "local_epochs", "local_ep"), "epochs"),
    **dict.fromkeys(("n_steps", "num_steps", "local_steps", "iterations"), "steps"),
    **dict.fromkeys(("n_rounds", "num_rounds", "comm_rounds", "communication_rounds", "global_rounds"), "rounds"),
    **dict.fromkeys(
        ("fraction", "frac", "fraction_fit", "client_fraction", "sample_rate", "join_ratio"), "participation"
    ),
    **dict.fromkeys(("n_clusters", "num_clusters", "n_groups", "num_groups"), "clusters"),
    **dict.fromkeys(("n_classes", "num_classes", "classes_per_client", "labels_per_client"), "classes"),
    **dict.fromkeys(("weight_decay", "wd", "l2"), "decay"),
    **dict.fromkeys(("max_grad_norm", "grad_clip", "clip_norm", "gradient_clipping"), "clip"),
    **dict.fromkeys(("server_lr", "global_lr", "server_learning_rate"), "server_rate"),
    **dict.fromkeys(("proximal_mu", "prox_mu", "mu_prox"), "mu"),
    **dict.fromkeys(("concentration", "dirichlet_alpha"), "alpha"),
    **dict.fromkeys(("random_state", "random_seed", "rng_seed"), "seed"),
    **dict.fromkeys(("test_size", "test_split", "test_fraction"), "test_share"),
    **dict.fromkeys(("val_split", "val_share", "validation_share", "validation_split"), "validation"),
    **dict.fromkeys(("partition", "partitioner", "partitioning"), "split"),
    **dict.fromkeys(("model", "network", "architecture"), "net"),
    **dict.fromkeys(("num_workers", "n_workers", "n_jobs"), "workers"),
    **dict.fromkeys(("class_names", "target_names"), "labels"),
    **dict.fromkeys(("opt", "optim"), "optimizer"),
    "gpu": "device",
    "dtype": "precision",
}
"""What an option is called here, by the names that it has elsewhere."""


def called_here(name: str) -> str:
    """What an option is called here that has this name elsewhere, with the same prefix; the name itself if unknown."""
    prefix, dot, option = str(name).replace("-", "_").rpartition(".")
    return prefix + dot + CALLED_HERE.get(option.lower(), option)


def unknown(kind: str, name: str, known: Iterable[str]) -> SettingsError:
    """The error for a name that is not among the known ones; it proposes what it is called here, or what is similar."""
    names = sorted(known)
    called = called_here(name)
    if called in names and called != name:
        return SettingsError(f"unknown {kind} {name!r}: it is called {called} here")
    near = get_close_matches(str(name).lower(), names, n=3, cutoff=0.5)
    hint = (
        f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(names)}" if names else "there are none"
    )
    return SettingsError(f"unknown {kind} {name!r}: {hint}")
