"""FedDyn: a regulariser that changes over rounds, so that the clients' optima move to that of all clients.

Acar, Zhao, Matas, Mattina, Whatmough and Saligrama, "Federated learning based on dynamic regularization", ICLR 2021.

| symbol | here |
|---|---|
| theta, theta_k | the global model, a client's model |
| g_k | a client's gradient at its last model; it is -alpha times its drift |
| drift | the sum of all changes that a client has made to models it was sent; it keeps it, and nobody else sees it |
| h | the mean of g_k over all clients; it is -alpha times the mean drift, which is what the server carries |

A client lowers L_k(theta) - <g_k, theta> + alpha/2 |theta - theta_t|^2 (Eq. 1); the gradient of the last two terms is
alpha (theta - theta_t + drift). The server takes the plain mean of the cohort's models and adds the mean drift, which
is the paper's -h/alpha without a division that could blow up. The mean is over all clients, not over the cohort, and
clients count alike whatever their size, as in the paper; the authors' code divides alpha by a client's size in units of
the mean size, which we do not.
"""

from typing import Annotated, Literal

from coterie.clients.clients import Clients
from coterie.clients.outputs import MODEL
from coterie.clients.programs import Outputs, program
from coterie.core.fields import above
from coterie.core.records import state
from coterie.moves import server_steps
from coterie.nets.stacks import Changes, Models
from coterie.server import serving
from coterie.server.federation import Federation, Replies
from coterie.server.method import Method, method
from coterie.training.local import LocalTraining


@state
class FedDynState:
    """The global model, the mean that it corrects, the mean drift, and over how many clients that is the mean."""

    model: Models
    mean: Models
    drift: Changes
    clients: int


@method("feddyn")
class FedDyn(Method):
    """Clients are pulled to the global model by a regulariser that remembers their drift. (Acar et al., ICLR 2021)"""

    family = "global"
    sends = "a model each way"
    gives_away = "its trained model"
    counts_on_memory = "the server adds up the drifts that clients keep"

    alpha: Annotated[float, above(0, "above 0; without a regulariser use fedavg")] = 0.1
    """Strength of the regulariser. The paper tunes it from 0.001 to 0.1."""

    clip: float = 10.0
    """Longest gradient of a step (Euclidean norm); 0 does not clip. The server adds up what clients drift, so a step
    that is far off does lasting harm; 10 is the authors' limit."""

    serves: Literal["cloud", "mean"] = "cloud"
    """Clients predict with the corrected model that the cloud sends out, or with the plain mean of the cohort's
    models, which can be better in early rounds; the authors' figures are of means."""

    def begin(self, fed: Federation) -> FedDynState:
        """A fresh model, and no drift yet."""
        model = fed.new_model()
        return FedDynState(model, model, model.zeros(), len(fed.clients))

    def round(self, fed: Federation, state: FedDynState) -> FedDynState:
        """Let the cohort train under its regularisers; correct the mean by how all clients have drifted so far."""
        cohort = fed.sample(self.participation)
        replies = fed.run(regularised_training, cohort, shared=state.model, local=self.local, alpha=self.alpha)
        return self.step(state, replies, max(state.clients, len(fed.clients)))

    def step(self, state: FedDynState, replies: Replies, clients: int) -> FedDynState:
        """The server's step, from what the cohort sent; `clients` is the number of all clients."""
        mean, changes = replies.average("uniform"), replies.model - state.model
        drift = server_steps.mean_over_all(state.drift, state.clients, changes, clients)
        return FedDynState(mean + drift, mean, drift, clients)

    def serve(self, fed: Federation, state: FedDynState) -> serving.Served:
        """The corrected model, or the mean."""
        return serving.one(state.model if self.serves == "cloud" else state.mean, len(fed.names))


@program(gives={"model": MODEL})
def regularised_training(clients: Clients, start: Models, local: LocalTraining, alpha: float) -> Outputs:
    """Train with the dynamic regulariser, and add the change to the drift."""
    drift = clients.state("drift", otherwise=start.zeros())
    trained = clients.train(start, local, pull=alpha, push=drift * alpha).models
    clients.keep(drift=drift + (trained - start))
    return {"model": trained}
