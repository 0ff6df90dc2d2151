"""FedPer: clients share the lower layers of their models and keep the upper ones, trained together.

Arivazhagan, Aggarwal, Singh and Choudhary, "Federated learning with personalization layers", 2019 (arXiv 1912.00818).

A client puts the base that it was sent under its own personalization layers, trains all of it at once, keeps it, and
sends the base back with its running statistics; the server takes the mean by samples. So it is LG-FedAvg with the other
part shared, and FedRep without taking turns. Clients predict with the newest base under their own layers, as the paper
has it. A client that is absent keeps its layers as they are, and personal layers begin alike at all clients. The
default is one personal layer; the paper tries up to four. It was compared with PFLlib's and FL-bench's code.
"""

from coterie.methods.lg_fedavg import LGFedAvg
from coterie.server.method import method


@method("fedper")
class FedPer(LGFedAvg):
    """Clients share the lower layers and keep the upper ones to themselves. (Arivazhagan et al., arXiv 2019)"""

    gives_away = "its trained lower layers, and nothing of its head"

    shares: str = "body"
    """The part that is shared: `body` (all but the last layer), `not top-2` (all but the last two), `all`, which is
    FedAvg, or names of layers with commas between."""

    refresh: bool = True
    """Clients predict with the newest base under their own layers, as in the paper, instead of with the model as they
    last trained it."""
