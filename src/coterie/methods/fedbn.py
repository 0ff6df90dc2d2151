"""FedBN: FedAvg of everything but batch normalisation, which every client keeps to itself.

Li, Jiang, Zhang, Kamp and Dou, "FedBN: federated learning on non-IID features via local batch normalization", ICLR
2021.

A client's batch normalisation, its parameters and its running statistics, fits the client's own features; all other
parameters are averaged as in FedAvg. The paper lets all clients take part. Here one that has not yet has normalisation
as it is made, among layers that are far from that: it predicts badly until its first round. A net without batch
normalisation has nothing to keep, and FedBN is FedAvg then. The authors' code tells such layers by the letters `bn` in
their names; here it is the kind of layer that counts.
"""

from coterie.methods.lg_fedavg import LGFedAvg
from coterie.server.method import method


@method("fedbn")
class FedBN(LGFedAvg):
    """FedAvg of everything but batch normalisation, which clients keep. (Li et al., ICLR 2021)"""

    sends = "a model without batch normalisation each way"
    gives_away = "its trained model but for batch normalisation, which would tell the moments of its features"

    shares: str = "not batch-norm"
    """The part that is shared: `not batch-norm` (all but layers of batch normalisation), `all`, which is FedAvg, or
    names of layers with commas between."""

    refresh: bool = True
    """Clients predict with the newest shared part and their own normalisation, instead of with the model as they last
    trained it."""
