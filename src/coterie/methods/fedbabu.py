"""FedBABU: the body is trained together under a head that nobody trains; before a client predicts, it tunes both.

Oh, Kim and Yun, "FedBABU: toward enhanced representation for federated image classification", ICLR 2022.

The head stays as it was drawn, the same at all clients, so that all bodies are trained for one and the same head; only
the body is sent and averaged, by samples. Before it predicts, a client tunes the whole model, or the part that it is
told. The head is initialised as the net's own layers are. Tuning leaves no trace, as in `fedavg-ft`. The details are
those of FL-bench's code, not of the paper's text.
"""

from typing import Literal

from torch import Tensor

from coterie.clients.clients import Clients
from coterie.clients.outputs import like_input
from coterie.clients.programs import Outputs, program
from coterie.core.fields import NonNegative
from coterie.core.records import state
from coterie.methods.fedavg_ft import tuning
from coterie.server import serving
from coterie.server.federation import Federation
from coterie.server.method import Method, method
from coterie.training.local import LocalTraining


@state
class FedBABUState:
    """The body, packed with its running statistics."""

    body: Tensor


@method("fedbabu")
class FedBABU(Method):
    """A shared body under a head that is never trained, and tuning before predicting. (Oh et al., ICLR 2022)"""

    family = "personal"
    sends = "the body of a model each way"
    gives_away = "its trained body; what it tunes stays with it"

    head: str = "head"
    """The part that is not trained in rounds: `head` (the last layer), `top-2` (the last two), `none`, which is
    FedAvg, or names of layers with commas between."""

    tune_epochs: NonNegative = 5.0
    """Passes over the client's own data before it predicts. 0 serves the one model."""

    tunes: str = "all"
    """The part that is tuned then: `all`, `head`, `body`, or names of layers with commas between."""

    weighting: Literal["samples", "uniform"] = "samples"
    """Clients count by their number of samples, or all the same."""

    def check(self, fed: Federation) -> None:
        """The net must have the parts."""
        super().check(fed)
        fed.net.part(self.head)
        fed.net.part(self.tunes)

    def begin(self, fed: Federation) -> FedBABUState:
        """The body of a fresh model, which clients make themselves."""
        return FedBABUState(fed.new_model().packed(f"not {self.head}"))

    def round(self, fed: Federation, state: FedBABUState) -> FedBABUState:
        """Send the body out, and take the mean of what comes back."""
        cohort = fed.sample(self.participation)
        replies = fed.run(train_body, cohort, shared=state.body, local=self.local, head=self.head)
        return FedBABUState(replies.weights(self.weighting).to(replies.body) @ replies.body)

    def serve(self, fed: Federation, state: FedBABUState) -> serving.Served:
        """The newest body under the first head, after the clients' own training."""
        model = fed.new_model().patched(f"not {self.head}", state.body)
        served = serving.one(model, len(fed.names))
        return served.after(tuning(self.local, self.tune_epochs), self.tunes) if self.tune_epochs else served


@program(gives=like_input("body"))
def train_body(clients: Clients, body: Tensor, local: LocalTraining, head: str) -> Outputs:
    """Train the body under the head with which all models begin, and give the body back."""
    rest = f"not {head}"
    trained = clients.train(clients.initial().patched(rest, body), local, trains=rest).models
    return {"body": trained.packed(rest)}
