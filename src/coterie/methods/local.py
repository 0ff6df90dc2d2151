"""Local training: every client alone. What federated learning has to beat."""

from typing import Literal

from coterie.clients.clients import Clients
from coterie.clients.programs import program
from coterie.core.records import state
from coterie.server import serving
from coterie.server.federation import Federation
from coterie.server.method import Method, method
from coterie.training.local import LocalTraining


@state
class LocalState:
    """Nothing: the server knows of no model."""


@method("local")
class Local(Method):
    """Every client trains its own model and sends nothing (SOLO)."""

    family = "personal"
    sends = "nothing"
    gives_away = "nothing but whether its training went well"

    budget: Literal["equal", "max"] = "equal"
    """Clients train as often as they would in a federation with this participation (`equal`), or in every round
    (`max`)."""

    def begin(self, fed: Federation) -> LocalState:
        """Clients start from the same initial model, which they make themselves."""
        return LocalState()

    def round(self, fed: Federation, state: LocalState) -> LocalState:
        """Let clients train their own models further."""
        fed.run(train_own, fed.sample(self.participation if self.budget == "equal" else 1.0), local=self.local)
        return state

    def serve(self, fed: Federation, state: LocalState) -> serving.Served:
        """Each client's own model."""
        return serving.kept("model")


@program(gives={})
def train_own(clients: Clients, local: LocalTraining) -> None:
    """Train the model that the client keeps, and keep it."""
    own = clients.state("model", otherwise=clients.initial())
    clients.keep(model=clients.train(own, local).models)
