"""FedRep: one body for all, a head for each.

Collins, Hassani, Mokhtari and Shakkottai, "Exploiting shared representations for personalized federated learning", ICML
2021.

A client puts the body that it was sent under its own head, trains the head with the body frozen, then the body with the
head frozen, keeps the head and sends the body back with its running statistics; the server takes the mean. Clients
predict with the newest body under their own head.
"""

from dataclasses import replace
from typing import Literal

from torch import Tensor

from coterie.clients.clients import Clients
from coterie.clients.outputs import like_input
from coterie.clients.programs import Outputs, program
from coterie.core.fields import NonNegative
from coterie.core.records import state
from coterie.server import serving
from coterie.server.federation import Federation
from coterie.server.method import Method, method
from coterie.training.local import LocalTraining


@state
class FedRepState:
    """The body, packed with its running statistics."""

    body: Tensor


@method("fedrep")
class FedRep(Method):
    """A shared body, and a head of its own for every client. (Collins et al., ICML 2021)"""

    family = "personal"
    sends = "the body of a model each way"
    gives_away = "its trained body, and nothing of its head"

    head: str = "head"
    """The part that clients keep: `head` (the last layer), `top-2` (the last two), `none`, or names of layers with
    commas between. Everything else is the body."""

    head_epochs: NonNegative = 10.0
    """Passes over the client's own data for the head, before `epochs` (or `steps`) for the body; 10 in the paper."""

    weighting: Literal["samples", "uniform"] = "samples"
    """Clients count by their number of samples, or all the same."""

    def check(self, fed: Federation) -> None:
        """The net must have the part."""
        super().check(fed)
        fed.net.part(self.head)

    @property
    def alone(self) -> LocalTraining:
        """How clients train their heads."""
        return replace(self.local, epochs=self.head_epochs, steps=None)

    def begin(self, fed: Federation) -> FedRepState:
        """The body of a fresh model, which clients make themselves."""
        return FedRepState(fed.new_model().packed(f"not {self.head}"))

    def round(self, fed: Federation, state: FedRepState) -> FedRepState:
        """Send the body out, and take the mean of what comes back."""
        cohort = fed.sample(self.participation)
        replies = fed.run(train_in_turn, cohort, shared=state.body, alone=self.alone, local=self.local, head=self.head)
        return FedRepState(replies.weights(self.weighting).to(replies.body) @ replies.body)

    def serve(self, fed: Federation, state: FedRepState) -> serving.Served:
        """The newest body under each client's own head."""
        return serving.kept("model", f"not {self.head}", state.body)


@program(gives=like_input("body"))
def train_in_turn(clients: Clients, body: Tensor, alone: LocalTraining, local: LocalTraining, head: str) -> Outputs:
    """Train the client's head on the body that it was sent, then that body; keep the head and give the body back."""
    rest = f"not {head}"
    model = clients.state("model", otherwise=clients.initial()).patched(rest, body)
    for part, how in ((head, alone), (rest, local)):
        if model.net.part(part).any():
            model = clients.train(model, how, trains=part).models
    clients.keep(model=model)
    return {"body": model.packed(rest)}
