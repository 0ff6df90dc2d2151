"""Accord: clients train one model without their priors, group where that pays, and blend what serves each best.

Our own method; the parts are older. Where clients' labels differ in number, most of what tells clients apart is how
often labels occur, P(y), and not what they look like, P(x | y). One model learns the latter for everybody; the former
every client knows, and tells nobody.

| symbol | here |
|---|---|
| pi_i(y) | client i's shares of labels, (n_iy + s) / (n_i + s C); s is `prior_smoothing` |
| f | the model of the client's group: trained on f + log pi_i, and served so (`prior=own`) |
| m_iy, s_y | client i's mean features of label y, and how far samples of that label spread around it |
| g_-i | the mean of what the clients of i's group have trained, without i's own |

1. **Evidence without priors.** In `group_round` all clients train, and tell m_iy. Clients that share labels are the
   nearer, the less |m_iy - m_jy|^2 / s_y (`evidence.class_distance`); `grouping.merging` makes nested groups of them.
2. **Groups where they pay.** For each number of groups up to `most_groups`, client i compares g_-i with the same mean
   over everybody: by errors on its training data, which neither has seen in this round, and of which it has more than
   of validation data. More groups are made where errors say so (`choosing.paying`); otherwise one model stays.
3. **Nobody loses.** A client blends the outputs of its group's model, of that model adapted in a round's local
   training, and of the model it trained last; with `insured`, also of one that it trains alone. `moves.choosing`
   says how it chooses on validation data, and how far it trusts its own few samples.

Training without priors is a lever of any method (`--prior own`): Accord adds what comes after it. After groups have
parted there is no model of everybody any more. A client that comes late joins the group whose model fits its validation
data best, and needs nothing but its own counts. With SCAFFOLD clients train uncorrected when groups are looked for, and
send their control variates, whose means the groups begin with; a model is adapted without correction, too.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from coterie.core.errors import SettingsError
from coterie.core.fields import Count, Share, at_least
from coterie.core.records import state
from coterie.moves import choosing
from coterie.server.federation import Federation
from coterie.server.fitting import Noted
from coterie.server.method import Method, method
from coterie.server.parting import paying_groups
from coterie.server.serving import Served
from coterie.server.trained_groups import TrainedGroups


@state
class AccordState:
    """The groups, one of all clients at first, and what clients have seen of their blends."""

    groups: TrainedGroups
    seen: Tensor | None = None
    """What each client has told last of its blends, [client, blend, 3]; NaN for one that has told nothing yet."""


@method("accord")
class Accord(Method):
    """One model without priors, groups where they pay, and for each client the blend that serves it best. (ours)"""

    family = "own"
    sends = (
        "what its base sends, and what each blend gains for a client; once the mean features of every label that a "
        "client has, and down a model for each number of groups that is tried"
    )
    gives_away = (
        "its trained model, which labels it has and their mean features, but not how often it has them, and how much "
        "each blend gains on its validation data"
    )

    base: Literal["fedavg", "scaffold"] = "fedavg"
    """How a group's model is trained."""

    prior: Literal["learned", "own"] = "own"
    """Whether models learn how frequent labels are (`learned`), or clients keep that to themselves and add it to
    whatever they predict (`own`)."""

    clip: float = 10.0
    """Longest gradient of a step (Euclidean norm); 0 does not clip. 10 is that of `scaffold` here."""

    group_round: Annotated[int, at_least(0)] = 3
    """The round in which groups are looked for, and all clients take part; 0 never looks."""

    looks: Count = 2
    """How often groups are looked for, every `group_round` rounds, until some are found."""

    most_groups: Annotated[int, at_least(2)] = 6
    """Into how many groups clients may be parted. Never more than half as many as there are clients."""

    significance: Share = 0.05
    """How likely groups may be found where there are none, over all looks and all numbers of groups."""

    blends: Annotated[int, at_least(0)] = 2
    """In how many parts a client deals out the weights of its candidates: 1 takes one of them, 2 also the mean of two,
    and so on. 0 leaves everybody with the group's model."""

    insured: bool = False
    """Let each client train a model alone as well, at twice the local work, as one more candidate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.base == "scaffold" and self.optimizer != "sgd":
            raise SettingsError(f"optimizer={self.optimizer}: control variates are made for sgd; use base=fedavg")
        if self.insured and not self.blends:
            raise SettingsError("insured=true with blends=0: nobody could choose the model that it trains alone")

    @property
    def needs_classes(self) -> str:
        """Why it needs classes."""
        return "keeps clients' shares of classes out of training"

    def begin(self, fed: Federation) -> AccordState:
        """All clients in one group."""
        return AccordState(TrainedGroups.one(fed, corrected=self.base == "scaffold"))

    def round(self, fed: Federation, state: AccordState) -> Noted:
        """A round of the base in every group; in some rounds all clients train, and groups are looked for."""
        groups, seen = state.groups.settled(fed), state.seen
        looks = len(groups) == 1 and fed.round in [self.group_round * look for look in range(1, self.looks + 1)]
        cohort = groups.clusters.sample(fed, 1 if looks else self.participation)
        told: dict[str, Any] = {"local": self.local, "parts": self.blends, "insured": self.insured, "looks": looks}
        replies = fed.run(choosing.train_and_judge, cohort, each=groups.inputs(fed, cohort), **told)
        if self.blends:
            known = replies.gains[:0] if seen is None else seen
            seen = fed.updated(known, replies.clients, replies.gains, otherwise=torch.nan)
        noted: Mapping[str, Any] = {}
        if looks:
            level = self.significance / self.looks
            replies, found, noted = paying_groups(fed, replies, groups, self.most_groups, level)
            groups = groups if found is None else groups.parted(fed, replies, found)
        return Noted(AccordState(groups.stepped(fed, replies), seen), noted)

    def serve(self, fed: Federation, state: AccordState) -> Served:
        """To each client its group's model, of which it makes its own blend."""
        served = state.groups.clusters.serve(fed)
        if state.seen is None:
            return served
        own = ("model", "alone") if self.insured else ("model",)
        return served.blended(own, self.local, self.blends, choosing.between_clients(state.seen))

    def insight(self, fed: Federation, state: AccordState) -> Mapping[str, Any]:
        """The groups, and what every blend gains for each client beside the group's model alone."""
        gains = {} if state.seen is None else {"gains": fed.grown(state.seen, torch.nan)[..., 0]}
        return {"clusters": state.groups.clusters.of(fed), **gains}
