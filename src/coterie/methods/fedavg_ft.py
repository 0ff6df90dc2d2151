"""FedAvg with fine-tuning: before a client predicts, it trains the global model a little on its own data.

Collins, Hassani, Mokhtari and Shakkottai, "FedAvg with fine tuning: local updates lead to representation learning",
NeurIPS 2022; as a baseline it is older (Wang et al., "Federated evaluation of on-device personalization", 2019). Linear
probing first, so that a head that does not fit does not spoil the features: Kumar, Raghunathan, Jones, Ma and Liang,
"Fine-tuning can distort pretrained features and underperform out-of-distribution", ICLR 2022.

Rounds are FedAvg's to the last bit. Fine-tuning leaves no trace: the next evaluation begins with the newest global
model again, so a run that is evaluated in every round pays for it in every round. Papers that have it as a baseline
differ in the part, the epochs and the rate: FedRep's authors, for one, tune the head alone for 10 epochs.
"""

from dataclasses import replace

from coterie.core.fields import NonNegative, Positive
from coterie.methods.fedavg import FedAvg, FedAvgState
from coterie.server.federation import Federation
from coterie.server.method import method
from coterie.server.serving import Served
from coterie.training.local import LocalTraining


@method("fedavg-ft")
class FedAvgFT(FedAvg):
    """FedAvg, and a little training on its own data before a client predicts. (Collins et al., NeurIPS 2022)"""

    family = "personal"

    tune_epochs: NonNegative = 5.0
    """Passes over the client's own data with which it tunes the model before it predicts. 0 is FedAvg."""

    probe_epochs: NonNegative = 0.0
    """Passes for the head alone before that: linear probing."""

    tunes: str = "all"
    """The part that is tuned: `all`, `head`, `body`, or names of layers with commas between."""

    tune_rate: Positive | None = None
    """Learning rate of tuning and probing; by default that of training, without its schedule."""

    def check(self, fed: Federation) -> None:
        """The net must have the part."""
        super().check(fed)
        fed.net.part(self.tunes)

    def serve(self, fed: Federation, state: FedAvgState) -> Served:
        """The one model, after the clients' own training."""
        served = super().serve(fed, state)
        for part, epochs in (("head", self.probe_epochs), (self.tunes, self.tune_epochs)):
            served = served.after(tuning(self.local, epochs, self.tune_rate), part) if epochs else served
        return served


def tuning(local: LocalTraining, epochs: float, rate: float | None = None) -> LocalTraining:
    """Local training like this one, for so many epochs at one rate."""
    return replace(local, epochs=epochs, steps=None, rate=rate or local.rate, schedule="constant")
