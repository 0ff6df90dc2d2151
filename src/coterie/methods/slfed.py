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

**What is sent.** Between clients, as letters that the server cannot open: synthetic samples and counts to those that a
client meets, opinions to the same, a request to each contributor with its weight and the list of all, n (n - 1) shares
of the size of a model among n contributors, and n sums to the client. The server draws who meets whom and hands letters
on: it sees who writes to whom, how much, and whose training went well. With `topology=server` it is trusted
instead (Section 7.4): it gets every model and every weight, and sends mixed models back.

**Who learns what.** All are honest but curious. A client learns weak synthetic samples and predicted classes of those
that it meets, everybody's opinions as far as they are told, and the weighted sum of its contributors' models. A sum of
one model would be that model, so with fewer than two contributors a client keeps its own; as Eq. 16 trusts at most half
of those that are known, that is usual in a federation of fewer than about six. Shares hide a contributor's model from
all others, but not from the client that asked if it colludes with *all* other contributors: they take their own models
off the sum. Sums of overlapping contributors over rounds tell more than one sum does. If a contributor is lost between
request and answer the sum is lost too, and the client keeps its own model for that round.

**A simulation** computes the sums directly and charges the ledger with what the letters would have been; `rehearse`, or
a federation of real clients, does write them. The results are the same to the fixed-point step of the shares.

**Where the paper is open or wrong.** Eq. 18 must sum the shares that a contributor received, and its own one: else the
sum does not come out. The paper's shares (`sharing=scalar`) show every layer up to scale; ours are additive in a ring.
Eq. 16 keeps everybody when all uncertainties are equal. How opinions are stored is open: see the field `opinions`. The
model that is mixed is the one after local training, where the text also speaks of the last mixed one.
"""

from collections.abc import Callable, Mapping
from itertools import zip_longest
from typing import Annotated, Any, Literal

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from coterie.clients import secure_sums, sharing
from coterie.clients.clients import Clients
from coterie.clients.programs import Outputs, program
from coterie.clients.synthesis import class_counts, unpacked
from coterie.clients.synthesis import synthetic as synthetic_samples
from coterie.core.arrays import everywhere
from coterie.core.errors import SettingsError
from coterie.core.fields import Count, NonNegative, Positive, at_least
from coterie.core.records import state
from coterie.moves import mixing, trust
from coterie.nets.stacks import Changes, Models, distances
from coterie.server import serving
from coterie.server.federation import Federation, Replies
from coterie.server.method import Method, method
from coterie.server.serving import Served
from coterie.training.local import LocalTraining

__all__ = ["SLFed"]

Names = tuple[str, ...]


@state
class State:
    """Nothing: clients keep their models and their opinions."""


@method("slfed")
class SLFed(Method):
    """Every client mixes its own model by its opinion of the others. (Palanisamy Sundar et al., ARES 2024)"""

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
    """How contributors hide their models from each other and from who asked: additive shares in a ring, the paper's
    scalar ones that show every layer up to scale, or not at all."""

    topology: Literal["peer", "server"] = "peer"
    """Contributors mix models among themselves, or a trusted server does (Section 7.4)."""

    server_clip: NonNegative = 0.0
    """With a trusted server: how far, in Euclidean distance, a contributor's model may be from the client's own; one
    that is farther is brought nearer. 0 does not clip."""

    server_noise: NonNegative = 0.0
    """With a trusted server: deviation of Gaussian noise on every parameter, in units of how far clipping lets a single
    contributor move the mixed model."""

    rehearse: bool = False
    """Let a simulation write every share too."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.topology == "peer" and (self.server_clip or self.server_noise):
            raise SettingsError("server_clip and server_noise are for a trusted server: use topology=server")
        if self.server_noise and not self.server_clip:
            raise SettingsError(f"server_noise={self.server_noise}: is in units of server_clip, which is not set")

    def begin(self, fed: Federation) -> State:
        """Clients start from the same initial model, which they make themselves."""
        return State()

    def round(self, fed: Federation, state: State) -> State:
        """Train, meet, form opinions, choose contributors, and mix."""
        names = tuple(fed.names)
        cohort = fed.sample(self.participation)
        gan = LocalTraining(steps=self.gan_steps, batch=32, rate=self.gan_rate, momentum=0.5, clip=1.0)
        here = fed.run(
            introduce,
            cohort,
            each={"links": self._links(fed, cohort)},
            names=names,
            local=self.local,
            gan=gan,
            synthetic=self.synthetic,
            since=last_refresh(fed.round, self.gan_refresh),
        )
        here = fed.run(judge, here.clients, letters=here.letters, names=names)
        here = fed.run(weigh, here.clients, letters=here.letters, names=names, store=self.opinions)
        if self.topology == "server":
            self._mix(fed, fed.run, here)
        elif self.rehearse or fed.real:
            self._exchange(fed, here)
        else:
            self._charge(fed, self._mix(fed, fed.shortcut, here))
        return state

    def _links(self, fed: Federation, cohort: np.ndarray) -> np.ndarray:
        """Who meets whom, [cohort, client]: drawn by name, so that it does not matter how clients are numbered."""
        order = sorted(cohort, key=lambda client: fed.names[client])
        links = np.zeros((len(fed.names), len(fed.names)), dtype=bool)
        rngs = [fed.generator(f"meetings of {fed.names[client]}") for client in order]
        links[np.ix_(order, order)] = trust.meetings(rngs, self.direct)
        return links[cohort]

    def _choose(self, fed: Federation, ask: Callable[..., Replies], here: Replies, reveal: bool) -> Replies:
        names = tuple(fed.names)
        present = tuple(names[client] for client in here.clients)
        settings = {"names": names, "present": present, "store": self.opinions, "reveal": reveal}
        return ask(choose, here.clients, letters=here.letters, **settings)

    def _exchange(self, fed: Federation, here: Replies) -> None:
        """The sums by letters between clients."""
        names = tuple(fed.names)
        here = self._choose(fed, fed.run, here, reveal=False)
        here = fed.run(share, here.clients, letters=here.letters, names=names, mode=self.sharing)
        if self.sharing != "none":
            here = fed.run(respond, here.clients, letters=here.letters, names=names, mode=self.sharing)
        fed.run(combine, here.clients, letters=here.letters, names=names)

    def _mix(self, fed: Federation, ask: Callable[..., Replies], here: Replies) -> Tensor:
        """The sums by somebody who sees all models: how many contributors each client has, [client]."""
        here = self._choose(fed, ask, here, reveal=True)
        similarity = here.similarity[:, here.clients].cpu()
        weights = mixing.personal(similarity)
        if self.server_clip:
            bounded = mixing.clipped(weights, distances(here.model.parameters), self.server_clip)
            mixed = bounded @ here.model + self._noise(fed, weights, here.model)
        else:
            mixed = weights @ here.model
        ask(adopt, here.clients, each={"model": mixed})
        return (similarity > 0).sum(dim=1)

    def _noise(self, fed: Federation, weights: Tensor, models: Models) -> Changes:
        """Noise in proportion to what the heaviest contributor of each client can do."""
        heaviest = (weights - torch.diag(weights.diagonal())).amax(dim=1)
        # In earnest, noise that a seed can repeat protects nobody.
        rng = np.random.default_rng() if fed.real else fed.generator("noise")
        noise = torch.from_numpy(rng.standard_normal(models.parameters.shape))
        return Changes(models.net, noise.to(models.parameters)) * (self.server_noise * self.server_clip * heaviest)

    def _charge(self, fed: Federation, contributors: Tensor) -> None:
        """Count what the letters of an exchange would have been for so many contributors of each client, [client]."""
        numbers = fed.net.parameters.total + fed.net.buffers.total
        for count in contributors.tolist():
            for subject, size in secure_sums.traffic(count, numbers, self.sharing, fed.net.dtype.itemsize).items():
                fed.ledger.add("peer", subject, size)

    def serve(self, fed: Federation, state: State) -> Served:
        """Each client's own mixed model."""
        return serving.kept("model")

    def insight(self, fed: Federation, state: State) -> Mapping[str, Any]:
        """What clients think of each other, and how they mix: in a simulation alone, as no server may see it."""
        if fed.real:
            return {}
        held = fed.shortcut(show_opinions, names=tuple(fed.names))
        everybody = held.uncertainty.cpu().numpy()
        known = everybody < 1
        opinions = np.stack([np.zeros_like(everybody), 1 - everybody, everybody], axis=-1)
        with np.errstate(invalid="ignore"):
            mean = np.where(known, everybody, 0).sum(axis=1) / known.sum(axis=1)
        found = {"uncertainty": mean, "chosen": trust.trusted(opinions).sum(axis=1), "known": known.sum(axis=1)}
        rows = {name: np.full(len(fed.names), np.nan) for name in found}
        for name, values in found.items():
            rows[name][held.clients] = values
        mixed = mixing.personal(held.similarity[:, held.clients].cpu())
        return {**rows, "mixing": everywhere(mixed, held.clients, len(fed.names))}


def last_refresh(round: int, every: int) -> int:  # noqa: A002
    """The last round so far in which synthetic samples are made anew: 1, then three times `every` rounds later, and
    then after twice as many rounds each time."""
    last, made = 1, 1
    while every and last + every <= round:
        last, made = last + every, made + 1
        every *= 2 if made > 3 else 1
    return last


# What a client keeps about every other one, in float64: evidence, opinion, and notes within a round

_EVIDENCE, _OPINION = slice(0, 2), slice(2, 5)
_ALIKE, _SIGMA, _HEARD = 5, 6, 7
_UNSEEN = -1.0
_STRANGER = np.array([1.0, 1.0, *trust.NOTHING, _UNSEEN, 0.0, 1.0])

_BLOCK = 32
"""Clients in a block: others may join in mid-run, but what is kept under a name may not change its shape."""


def _recall(clients: Clients, names: Names) -> np.ndarray:
    """The table of each client, [client, other, column]."""
    fresh = torch.from_numpy(_STRANGER).expand(len(clients), _BLOCK, -1)
    blocks = [clients.state(f"others {first}", fresh).cpu().numpy() for first in range(0, len(names), _BLOCK)]
    return np.concatenate(blocks, axis=1)[:, : len(names)].copy()


def _remember(clients: Clients, table: np.ndarray) -> None:
    for first in range(0, table.shape[1], _BLOCK):
        block = np.tile(_STRANGER, (len(clients), _BLOCK, 1))
        part = table[:, first : first + _BLOCK]
        block[:, : part.shape[1]] = part
        clients.keep(**{f"others {first}": torch.from_numpy(block)})


def _places(clients: Clients, names: Names) -> list[int]:
    return [names.index(name) for name in clients.names]


def _counted(clients: Clients, models: Models, samples: Tensor, bounds: Tensor) -> Tensor:
    """The classes that models see in packed samples, which are unpacked where the models are: there are many."""
    device = clients.net.device
    return class_counts(clients, models, unpacked(samples.to(device), bounds.to(device)))


def _cosine(left: Tensor, right: Tensor) -> float:
    return float(F.cosine_similarity(left.double(), right.double(), dim=0).clamp(0, 1))


# The clients' side


@program(letters=True)
def introduce(
    clients: Clients, links: Tensor, names: Names, local: LocalTraining, gan: LocalTraining, synthetic: int, since: int
) -> Outputs:
    """Train the own model, make synthetic samples if those at hand are from before `since`, and show them."""
    own = clients.train(clients.state("model", otherwise=clients.initial()), local).models
    shown, bounds = synthetic_samples(clients, gan, synthetic, since)
    counts = _counted(clients, own, shown, bounds)
    clients.keep(model=own, counts=counts)
    for row, peers in enumerate(links.cpu()):
        for peer in peers.nonzero()[:, 0].tolist():
            clients.write(row, names[peer], "samples", samples=shown[row], bounds=bounds[row], counts=counts[row])
    # A model that is beyond numbers is nothing to share: who has one is left out of the round.
    well = torch.cat(own.tensors, dim=1).abs().amax(dim=1) <= sharing.LARGEST
    return {"well": torch.where(well, 1.0, torch.nan)}


@program(letters=True)
def judge(clients: Clients, names: Names) -> None:
    """Count the classes that the own model sees in others' samples, compare with theirs, and tell them."""
    own, table = clients.state("model"), _recall(clients, names)
    table[..., _ALIKE] = _UNSEEN
    received = [clients.letters(row, "samples") for row in range(len(clients))]
    for letters in zip_longest(*received):  # the first letter of every client, the second ...
        some = next(letter for letter in letters if letter is not None)  # who has fewer looks at another's in vain
        contents = [(letter or some).content for letter in letters]
        samples, bounds = (torch.stack([content[name] for content in contents]) for name in ("samples", "bounds"))
        for row, counts in enumerate(_counted(clients, own, samples, bounds)):
            if (letter := letters[row]) is not None:
                table[row, names.index(letter.sender), _ALIKE] = _cosine(counts, letter.content["counts"])
                clients.write(row, letter.sender, "counts", counts=counts)
    _remember(clients, table)


@program(letters=True)
def weigh(clients: Clients, names: Names, store: trust.Store) -> None:
    """Turn encounters into evidence and opinions, and tell these to those who were met."""
    own, table = clients.state("counts").cpu(), _recall(clients, names)
    similarity = np.full(table.shape[:2], np.nan)
    for row in range(len(clients)):
        for letter in clients.letters(row, "counts"):
            other = names.index(letter.sender)
            on_own, on_other = _cosine(own[row], letter.content["counts"]), table[row, other, _ALIKE]
            if on_other != _UNSEEN:  # a letter may be lost one way
                similarity[row, other] = (on_own + on_other) / 2  # Eq. 2
    table[..., _EVIDENCE], table[..., _OPINION] = trust.met(
        table[..., _EVIDENCE], table[..., _OPINION], similarity, store
    )
    _remember(clients, table)
    for row, other in np.argwhere(~np.isnan(similarity)).tolist():
        clients.write(row, names[other], "opinions", opinions=torch.from_numpy(table[row, :, _OPINION]))


@program(letters=True)
def choose(clients: Clients, names: Names, present: Names, store: trust.Store, reveal: bool) -> Outputs:
    """Hear what others think, choose contributors among those present, and ask them, or tell the weights."""
    table = _recall(clients, names)
    there = np.isin(names, present)
    for row, me in enumerate(_places(clients, names)):
        told = {names.index(at.sender): at.content["opinions"].numpy() for at in clients.letters(row, "opinions")}
        opinions = trust.heard(table[row, :, _OPINION], me, told)
        chosen = trust.trusted(opinions) & there
        chosen &= chosen.sum() > 1  # a sum of one model would be that model
        table[row, :, _SIGMA] = np.where(chosen, opinions[:, 0], 0)
        table[row, :, _HEARD] = opinions[:, 2]
        if store == "persistent":
            table[row, :, _OPINION] = opinions
    _remember(clients, table)
    sigma = torch.from_numpy(table[..., _SIGMA])
    if reveal:
        return {"model": clients.state("model"), "similarity": sigma}
    for row, weights in enumerate(sigma):
        secure_sums.ask(clients, row, names, weights)
    return {}


@program
def show_opinions(clients: Clients, names: Names) -> Outputs:
    """How uncertain each client is of the others, and what they counted for in its model; for simulations alone."""
    table = torch.from_numpy(_recall(clients, names))
    return {"uncertainty": table[..., _HEARD], "similarity": table[..., _SIGMA]}


@program
def adopt(clients: Clients, model: Models) -> None:
    """Keep the mixed model."""
    clients.keep(model=model)


@program(letters=True)
def share(clients: Clients, names: Names, mode: secure_sums.Mode) -> None:
    """Split the own model, times its weight, among all contributors of everybody who asked (Eq. 17)."""
    secure_sums.send_shares(clients, names, clients.state("model"), mode)


@program(letters=True)
def respond(clients: Clients, names: Names, mode: sharing.Mode) -> None:
    """Send everybody who asked the sum of the shares that were received, and of the own one (Eq. 18)."""
    secure_sums.send_sums(clients, names, clients.state("model"), mode)


@program
def combine(clients: Clients, names: Names) -> None:
    """Mix the own model with the sum of the contributors', if all of them have answered (Eq. 19)."""
    own, sigma = clients.state("model"), torch.from_numpy(_recall(clients, names)[..., _SIGMA])
    mixed = secure_sums.flat(own)
    for row, weights in enumerate(sigma):
        if (total := secure_sums.received(clients, row, names, weights)) is not None:
            mixed[row] = (mixed[row] + total) / (1 + weights.sum())
    parts = mixed.to(own.parameters).split([tensor.shape[1] for tensor in own.tensors], dim=1)
    clients.keep(model=Models(own.net, *parts))
