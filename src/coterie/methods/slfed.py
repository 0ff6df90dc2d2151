"""SLFed: every client mixes a model of its own, by its opinion of the others, and nobody sees anybody's model.

Palanisamy Sundar, Li, Zou and Gao, "Subjective logic-based decentralized federated learning for non-IID data", ARES
2024. In a round every client trains its model and meets a few others. Both swap synthetic samples and count which
classes their models see in them; how alike the counts are is evidence for an opinion (`coterie.moves.trust`). They swap
opinions, each client picks those it is certain of, and asks them for the sum of their models, each times its
similarity. The contributors send each other secret shares (`coterie.clients.sharing`), and the client gets sums
of shares.

| symbol | here |
|---|---|
| Delta_B^A | counts of the classes that A's model predicts for B's synthetic samples |
| lambda | similarity of two clients, from four such counts (Eq. 2) |
| alpha, beta | evidence for and against similarity, 1 and 1 at first |
| chi = (s, d, u) | an opinion (Eqs. 3-15) |
| tau, PAM_list | the threshold for u (Eq. 16), and who is at or below it |
| sigma, SHR, RSP | the similarity s of a contributor, its shares (Eq. 17), sums of shares (Eq. 18) |
| PAM | the mixed model (M + sum of sigma_i M_i) / (1 + sum of sigma_i) (Eq. 19), which the client then keeps |

**What is sent.** Synthetic samples and counts to those that a client meets, opinions to the same, a request to each
contributor with its weight and the list of all, n (n - 1) shares of the size of a model among n contributors, and n
sums to the client. The server draws who meets whom, and hands letters on that it cannot open. With `topology=server` it
is trusted instead (Section 7.4).

**Who learns what.** All are honest but curious. A client learns weak synthetic samples and predicted classes of those
that it meets, everybody's opinions as far as they are told, the weights of sums to which it contributes, and the
weighted sum of its contributors' models. A sum of one model would be that model, so with fewer than two contributors,
or with one that weighs more than four times all others together, a client keeps its own; as Eq. 16 trusts at most half
of those that are known, that is usual in a federation of fewer than about six. Contributors do not take a client's word
for it: they answer nobody who is a contributor itself, names one twice or asks two questions about the same model
(`coterie.clients.secure_sums`). Shares hide a contributor's model from all others, but not from the client that asked
if it colludes with *all* other contributors: they take their own models off the sum. Sums of overlapping contributors
over rounds tell more than one sum does. If a contributor is lost between request and answer the sum is lost too, and
the client keeps its own model for that round; so it is if a contributor sends what is no share. A wrong share that
looks like one is not noticed, and spoils the mixed model of the client that asked.

**A simulation** computes the sums directly and charges the ledger with what the letters would have been; `rehearse`, or
a federation of real clients, does write them. The results are the same to the fixed-point step of the shares.

**Where the paper is open or wrong.** Eq. 18 must sum the shares that a contributor received, and its own one: else the
sum does not come out. The paper's shares (`sharing=scalar`) show every layer up to scale; ours are additive in a ring.
Eq. 16 keeps everybody when all uncertainties are equal. How opinions are stored is open: see the field `opinions`. The
model that is mixed is the one after local training, where the text also speaks of the last mixed one.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor

from coterie.clients import secure_sums
from coterie.clients.clients import Clients
from coterie.clients.programs import SHARE, Outputs, program
from coterie.clients.secure_sums import Names
from coterie.clients.synthesis import class_counts, last_refresh
from coterie.clients.synthesis import synthetic as synthetic_samples
from coterie.core.arrays import everywhere
from coterie.core.errors import SettingsError
from coterie.core.fields import Count, NonNegative, Positive, at_least
from coterie.core.records import state
from coterie.moves import mixing, trust
from coterie.moves.encounters import adopt, choose, combine, judge, respond, share, show_opinions, weigh
from coterie.server import serving
from coterie.server.federation import Federation, Replies
from coterie.server.method import Method, method
from coterie.training.local import LocalTraining


@state
class SLFedState:
    """Nothing: clients keep their models and their opinions."""


@method("slfed")
class SLFed(Method):
    """Every client mixes its own model by its opinion of the others. (Palanisamy Sundar et al., ARES 2024)"""

    family = "personal"
    sends = "samples, counts, opinions and shares of models between clients; to a trusted server models"
    gives_away = (
        "weak synthetic samples and predicted classes to those it meets, sums of models to those who ask; to the "
        "server who writes to whom, how much, and whether training went well, or, if that is trusted, its model"
    )

    direct: Count = 2
    """DS: how many others a client picks to meet in a round; who is picked meets it too. The paper's choice."""

    opinions: Literal["direct", "persistent"] = "direct"
    """Clients tell others what they have seen themselves, and make up their minds anew every round (`direct`); or they
    keep and tell on what they made of what they were told (`persistent`). The paper leaves it open. The latter spreads
    as fast as its Fig. 6, but evidence is counted again and again until everybody thinks the same of a client; the
    former did better on validation data."""

    synthetic: Count = 1000
    """Synthetic samples that a client shows to those it meets. The paper's choice."""

    gan_refresh: Annotated[int, at_least(0)] = 3
    """Rounds between trainings of the GAN, each followed by new samples from new noise: three times, then twice as
    many each time. The paper says every 3 or 4 rounds at first and rarely later. 0 trains it once."""

    gan_steps: Count = 200
    """Steps of each training of the GAN. The paper says a few epochs."""

    gan_rate: Positive = 0.1
    """Learning rate of the GAN, with SGD and momentum as Goodfellow et al. had it; Adam's usual momentum made every
    sample the same."""

    sharing: Literal["additive", "scalar", "none"] = "additive"
    """How contributors hide their models from each other and from the client that asked: additive shares in a ring, the
    paper's scalar ones that show every layer up to scale, or not at all."""

    topology: Literal["peer", "server"] = "peer"
    """Contributors mix models among themselves, or a trusted server does (Section 7.4)."""

    server_clip: NonNegative = 0.0
    """With a trusted server: how far, in Euclidean distance, a contributor's model may be from the client's own; one
    that is farther is brought nearer. 0 does not clip."""

    server_noise: NonNegative = 0.0
    """With a trusted server: deviation of Gaussian noise on every parameter, in units of how far clipping lets a single
    contributor move the mixed model."""

    rehearse: bool = False
    """Let a simulation write all letters too, secret shares included, as real clients do."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.topology == "peer" and (self.server_clip or self.server_noise):
            raise SettingsError("server_clip and server_noise are for a trusted server: use topology=server")
        if self.server_noise and not self.server_clip:
            raise SettingsError(f"server_noise={self.server_noise}: is in units of server_clip, which is not set")

    @property
    def needs_classes(self) -> str:
        """Why it needs classes."""
        return "trusts clients by the classes that models see in synthetic samples"

    @property
    def gan(self) -> LocalTraining:
        """How clients train their GANs."""
        return LocalTraining(steps=self.gan_steps, batch=32, rate=self.gan_rate, momentum=0.5, clip=1.0)

    def begin(self, fed: Federation) -> SLFedState:
        """Clients start from the same initial model, which they make themselves."""
        return SLFedState()

    def round(self, fed: Federation, state: SLFedState) -> SLFedState:
        """Train, meet, form opinions, choose contributors, and mix."""
        names, cohort = tuple(fed.names), fed.sample(self.participation)
        told: dict[str, Any] = {"local": self.local, "gan": self.gan, "synthetic": self.synthetic}
        told |= {"names": names, "since": last_refresh(fed.round, self.gan_refresh)}
        here = fed.run(introduce, cohort, each={"links": self._links(fed, cohort)}, **told)
        here = fed.then(here, judge, names=names)
        here = fed.then(here, weigh, names=names, store=self.opinions)
        if self.topology == "server":
            self._mix(fed, fed.run, here)
        elif self.rehearse or fed.real:
            self._exchange(fed, here)
        else:
            self._charge(fed, self._mix(fed, fed.shortcut, here))
        return state

    def _links(self, fed: Federation, cohort: np.ndarray) -> np.ndarray:
        """Who meets whom, [cohort, client]: drawn by name, so that it does not matter how clients are numbered."""
        order, links = sorted(cohort, key=fed.names.__getitem__), np.zeros((len(fed.names),) * 2, dtype=bool)
        rngs = [fed.generator(f"meetings of {fed.names[client]}") for client in order]
        links[np.ix_(order, order)] = trust.meetings(rngs, self.direct)
        return links[cohort]

    def _chosen(self, fed: Federation, ask: Callable[..., Replies], here: Replies, reveal: bool) -> Replies:
        """Let clients choose contributors, and ask these by letters or reveal them to the server."""
        present = tuple(fed.names[client] for client in here.clients)
        told = {"names": tuple(fed.names), "present": present, "store": self.opinions, "reveal": reveal}
        return ask(choose, here.clients, letters=here.letters, **told)

    def _exchange(self, fed: Federation, here: Replies) -> None:
        """Mix models by letters between clients."""
        told: dict[str, Any] = {"names": tuple(fed.names), "mode": self.sharing}
        here = fed.then(self._chosen(fed, fed.run, here, reveal=False), share, **told)
        if self.sharing != "none":
            here = fed.then(here, respond, **told)
        fed.then(here, combine, names=tuple(fed.names))

    def _mix(self, fed: Federation, ask: Callable[..., Replies], here: Replies) -> Tensor:
        """Mix models where all are seen, and say how many contributors each client has, [client]."""
        here = self._chosen(fed, ask, here, reveal=True)
        similarity = here.similarity[:, here.clients].cpu()
        weights = mixing.personal(similarity)
        # Between real clients, noise that a seed can repeat would protect nobody.
        rng = np.random.default_rng() if fed.real else fed.generator("noise")
        mixed = mixing.bounded(weights, here.model, self.server_clip, self.server_noise, rng)
        ask(adopt, here.clients, each={"model": mixed})
        return (similarity > 0).sum(dim=1)

    def _charge(self, fed: Federation, contributors: Tensor) -> None:
        """Count what letters would have been exchanged, had each client this number of contributors [client]."""
        numbers = fed.net.parameters.total + fed.net.buffers.total
        for count in contributors.tolist():
            for subject, size in secure_sums.traffic(count, numbers, self.sharing, fed.net.dtype.itemsize).items():
                fed.ledger.add("peer", subject, size)

    def serve(self, fed: Federation, state: SLFedState) -> serving.Served:
        """Each client's own mixed model."""
        return serving.kept("model")

    def insight(self, fed: Federation, state: SLFedState) -> Mapping[str, Any]:
        """What clients think of each other, and how they mix: in a simulation alone, as no server may see it."""
        if fed.real:
            return {}
        held = fed.shortcut(show_opinions, names=tuple(fed.names))
        found = trust.summarised(held.uncertainty.cpu().numpy())
        unknown = torch.empty(0, dtype=torch.float64)
        rows = {name: fed.updated(unknown, held.clients, values, otherwise=np.nan) for name, values in found.items()}
        mixed = mixing.personal(held.similarity[:, held.clients].cpu())
        return {**rows, "mixing": everywhere(mixed, held.clients, len(fed.names))}


# The clients' side


@program(letters=True, told={"since": "*"}, gives={"well": SHARE})
def introduce(
    clients: Clients, links: Tensor, names: Names, local: LocalTraining, gan: LocalTraining, synthetic: int, since: int
) -> Outputs:
    """Train the own model, make synthetic samples if those at hand are from before `since`, and show them."""
    own = clients.train(clients.state("model", otherwise=clients.initial()), local).models
    shown, bounds = synthetic_samples(clients, gan, synthetic, since)
    counts = class_counts(clients, own, shown, bounds)
    clients.keep(model=own, counts=counts)
    for row, peer in links.cpu().nonzero().tolist():
        clients.write(row, names[peer], "samples", samples=shown[row], bounds=bounds[row], counts=counts[row])
    # A model with numbers too large to be shared, or not finite, leaves its client out of the round.
    return {"well": torch.where(secure_sums.can_be_shared(own), 1.0, torch.nan)}
