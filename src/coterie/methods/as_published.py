"""Variants of methods that repeat what public code gets wrong, for comparison with tables that were made with it.

The methods themselves do what their papers say. A variant goes by the name of its method and is made where `compat` is
given, a field that only it has; its docstring says what is repeated and where that was found.
"""

from typing import Any, Literal

import numpy as np
from torch import Tensor

from coterie.clients.clients import Clients
from coterie.clients.outputs import CHANGES, MODEL, place_among
from coterie.clients.programs import Outputs, program
from coterie.core.errors import SettingsError
from coterie.methods import cfl, fedavg, feddc, ifca, scaffold
from coterie.methods.cfl import CFL
from coterie.methods.fedavg import FedAvg
from coterie.methods.feddc import FedDC, train_corrected, trained_and_controlled
from coterie.methods.fedfa import FedFa
from coterie.methods.fedprox import FedProx
from coterie.methods.flis import FLISDC, FLISHC
from coterie.methods.ifca import IFCA
from coterie.methods.scaffold import Scaffold, train_controlled
from coterie.nets.stacks import Changes, Models
from coterie.server.federation import Federation, Replies
from coterie.server.method import method_variant
from coterie.training.local import LocalTraining


@method_variant("fedprox")
class FedProxWithoutPull(FedProx):
    """FedProx without its pull."""

    compat: bool = False
    """Leave the pull out, as public code does by mistake: CAFA's takes it from tensors without a gradient, PACFL's from
    the model itself, so that it is always zero. FedProx's rows in tables made with them are FedAvg's."""

    def round(self, fed: Federation, state: fedavg.FedAvgState) -> fedavg.FedAvgState:
        """A round of FedAvg."""
        return FedAvg.round(self, fed, state)


@method_variant("scaffold")
class ScaffoldOfPublicCode(Scaffold):
    """SCAFFOLD whose control variates begin or are averaged otherwise."""

    compat: Literal["none", "niid-bench", "pacfl"] = "none"
    """Repeat errors of the code that published tables were made with. Both count a step with momentum as one gradient;
    `niid-bench` starts the control variates from a random net instead of zero, and `pacfl` divides their changes by the
    cohort instead of by all clients. Both weigh by samples; that they correct outside of momentum is not repeated."""

    def begin(self, fed: Federation) -> scaffold.ScaffoldState:
        """A fresh model, and control variates from zero or from a random net."""
        return scaffold.ScaffoldState(fed.new_model(), self._first(fed), len(fed.clients))

    def round(self, fed: Federation, state: scaffold.ScaffoldState) -> scaffold.ScaffoldState:
        """A round of SCAFFOLD with other first control variates, counts of gradients and means."""
        inputs = {"start": state.model, "control": state.control, "first": self._first(fed)}
        replies = fed.run(control_as_published, fed.sample(self.participation), shared=inputs, local=self.local)
        if self.compat == "pacfl":
            return self.step(state, replies, len(replies), len(replies))
        return self.step(state, replies, state.clients, max(state.clients, len(fed.clients)))

    def _first(self, fed: Federation) -> Changes:
        """What control variates start from."""
        if self.compat == "niid-bench":
            return Changes(fed.net, fed.new_models(2)[1].parameters)
        return fed.new_model().zeros()


@program(gives={"model": MODEL, "control_change": CHANGES})
def control_as_published(
    clients: Clients, start: Models, control: Changes, first: Changes, local: LocalTraining
) -> Outputs:
    """SCAFFOLD's client, with first control variates that it is told, and a step with momentum as one gradient."""
    return train_controlled(clients, start, control, local, first, momentum=0)


@method_variant("feddc")
class FedDCOfAverageLength(FedDC):
    """FedDC that takes every client for one of average size."""

    compat: bool = False
    """Repeat an error of the authors' code, which their tables were made with: control variates are divided by the
    steps of a client of average size and by the rate of the first round, whatever the client's own steps and the
    schedule are. Its weights by size, which are 1 for equal clients, are not repeated."""

    def trained(self, fed: Federation, state: feddc.FedDCState) -> Replies:
        """What FedDC's cohort sends, with the K eta that a client of average size has in the first round."""
        length = self.steps_for(round(float(fed.sizes.double().mean()))) * self.rate
        cohort, inputs = fed.sample(self.participation), self.sent(state)
        told: dict[str, Any] = {"local": self.local, "alpha": self.alpha, "length": length}
        return fed.run(correct_as_published, cohort, shared=inputs, **told)


@program(told={"length": "*"}, gives=trained_and_controlled)
def correct_as_published(
    clients: Clients,
    start: Models,
    local: LocalTraining,
    alpha: float,
    length: float,
    control: Changes | None = None,
) -> Outputs:
    """FedDC's client, which divides by a length that it is told."""
    return train_corrected(clients, start, local, alpha, control, length)


@method_variant("fedfa")
class FedFaBackwards(FedFa):
    """FedFa whose server goes back."""

    compat: bool = False
    """Subtract the server's momentum instead of adding it, as the public implementation (FLGo) does that CFIC's table
    was most likely made with, which takes back part of every change. With the default `server_rate`, the clients' small
    `rate`, it makes little difference."""

    @property
    def step_rate(self) -> float:
        """eta, below 0."""
        return -super().step_rate


@method_variant("ifca")
class IFCAOnTestData(IFCA):
    """IFCA whose clients choose by test data."""

    compat: bool = False
    """Let clients choose by accuracy on their own test data, as the code does (PACFL's) that FLIS's comparison seems to
    rest on, and which scores the view `last`. For reproduction."""

    reads_test_data = True

    def round(self, fed: Federation, state: ifca.IFCAState) -> ifca.IFCAState:
        """A round of IFCA with another choice."""
        cohort = fed.sample(self.participation)
        replies = fed.run(choose_on_test_and_train, cohort, shared=state.models, local=self.local)
        return ifca.IFCAState(replies.average(self.weighting, by=replies.choice, otherwise=state.models))


@program(gives=place_among("models"))
def choose_on_test_and_train(clients: Clients, models: Models, local: LocalTraining) -> Outputs:
    """Train the model with most test samples right."""
    choice = clients.evaluate(models, "test").accuracy.argmax(dim=1)
    return {"model": clients.train(models.chosen(choice), local).models, "choice": choice}


@method_variant("cfl")
class CFLByPositions(CFL):
    """CFL that takes positions for clients."""

    compat: Literal["none", "positions"] = "none"
    """`positions` repeats an error of public code, the authors' own first: after a split, positions inside the cluster
    are taken for numbers of clients, so that from the second split on clusters overlap, and clients are in none. As in
    FedEM's code, who is in several goes on with the newest, and who is in none alone."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.participation < 1:
            raise SettingsError(f"participation={self.participation}: the code that compat repeats asks all clients")

    def named(self, clients: np.ndarray) -> np.ndarray:
        """Positions inside the cluster, instead of the clients' own numbers."""
        return np.arange(len(clients))

    def divided(
        self, number: int, tree: cfl.CFLState, replies: Replies, updates: Changes, fresh: Tensor
    ) -> cfl.CFLState:
        """The tree after CFL's splits; then every client that is in no cluster gets one of its own."""
        tree = super().divided(number, tree, replies, updates, fresh)
        lost = (~tree.members.any(dim=0)).nonzero().numpy()
        return tree.split(0, np.array([], dtype=np.int64), list(lost))


@method_variant("flis-dc")
class FLISDCOnTestData(FLISDC):
    """FLIS (DC) whose clients choose by test data."""

    compat: bool = False
    """Let clients choose on their own test data, as the paper does, and allow `server_from=test`, as in its code, where
    the server's samples are test images. For reproduction."""

    reads_test_data = True
    chosen_on = "test"


@method_variant("flis-hc")
class FLISHCOnTestData(FLISHC):
    """FLIS (HC) whose clients choose by test data."""

    compat: bool = False
    """Let clients choose on their own test data, as the paper does, and allow `server_from=test`. For reproduction."""

    reads_test_data = True
    chosen_on = "test"
