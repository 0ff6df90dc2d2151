"""Programs: the clients' side of a protocol, as ordinary functions over `Clients`.

A program is registered under the module and name of its function. What runs on a client is always the client's own
registered function: a call names it, and never brings code along.

A program that writes letters has to say so, with `@program(letters=True)`: over a real network the letters are sealed,
and the receivers' keys of the round must be fetched before such a program runs.

A real site decides itself with which settings a program runs there: with those of the method that its owner has pinned.
A setting has the name of the method's field that it comes from; where it has another one, the program says which, as in
`@program(told={"pull": "mu"})` (see `coterie.server.protocol`).

A program declares what it gives (`coterie.clients.outputs`), with `@program(gives={"model": MODEL})`: a server holds
what real sites answer against that, and one site's answer that does not fit costs that site its contribution alone.

>>> fed = coterie.simulate(clients=3, net="mlp")
>>> fed.run(coterie.programs.choose, shared=fed.new_models(2)).choice.shape
torch.Size([3])
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial, update_wrapper
from typing import Any

from torch import Tensor

from coterie.clients.clients import Clients
from coterie.clients.memory import Value
from coterie.clients.outputs import COUNT, MODEL, NUMBER, SHARE, Declared, Gives, Output, unlike
from coterie.core.errors import CoterieError, SettingsError, unknown
from coterie.core.records import stored_name
from coterie.nets.net import Net
from coterie.nets.stacks import Models, Stack
from coterie.training.local import LocalTraining

Outputs = Mapping[str, Value]
"""What a program gives, by name."""

programs: dict[str, "Program"] = {}
"""All programs by name."""


class Program:
    """A registered function `(clients, *inputs, **settings) -> outputs`; all outputs have the client as first axis.

    >>> coterie.programs.train.inputs
    ['start', 'local', 'pull']
    """

    def __init__(
        self,
        function: Callable[..., Any],
        scoring: bool = False,
        letters: bool = False,
        simulated: bool = False,
        told: Mapping[str, str] | None = None,
        gives: Gives | None = None,
    ) -> None:
        self.function, self.scoring, self.letters, self.simulated = function, scoring, letters, simulated
        self.told, self.gives = dict(told or {}), gives
        self.name = stored_name(function)
        parameters = list(inspect.signature(function).parameters.values())
        if not parameters:
            raise SettingsError(f"program {self.name}: its first parameter must be the clients")
        self.inputs = [parameter.name for parameter in parameters[1:]]
        self.defaults = {one.name: one.default for one in parameters[1:] if one.default is not one.empty}
        update_wrapper(self, function)

    def __call__(self, clients: Clients, **inputs: Any) -> dict[str, Value]:
        """Run the function on clients, and check what comes out."""
        outputs = self.function(clients, **inputs)
        if isinstance(outputs, Models):
            outputs = {"model": outputs}
        if not isinstance(outputs, Mapping | None):
            raise CoterieError(f"program {self.name}: gives {type(outputs).__name__}, not outputs by name or models")
        outputs = dict(outputs or {})
        for name, value in outputs.items():
            if not isinstance(value, Tensor) and not hasattr(value, "tensors"):
                kind = type(value).__name__
                raise CoterieError(f"program {self.name}: output {name!r} is {kind}, not a tensor or models")
            if not value.shape or value.shape[0] != len(clients):
                raise CoterieError(
                    f"program {self.name}: output {name!r} has shape {tuple(value.shape)} for {len(clients)} clients"
                )
        asked = {name: value[0] if isinstance(value, Tensor | Stack) else value for name, value in inputs.items()}
        declared = self.declared(clients.net, asked)
        if declared is not None and (problem := unlike(outputs, declared, clients.net)) is not None:
            raise CoterieError(f"program {self.name} does not give what it declares: {problem}")
        return outputs

    def declared(self, net: Net, asked: Mapping[str, Any]) -> Declared | None:
        """All outputs for one client that gets these inputs and settings; None if the program does not declare them."""
        return self.gives(net, asked) if callable(self.gives) else self.gives


def program(
    function: Callable[..., Any] | None = None,
    *,
    scoring: bool = False,
    letters: bool = False,
    simulated: bool = False,
    told: Mapping[str, str] | None = None,
    gives: Gives | None = None,
) -> Any:
    """Register a function as a program, which declares what it `gives` (see `coterie.clients.outputs`).

    A program for `scoring` may read test data, and no method can run it. One with `letters` may write to other clients.
    One that is `simulated` gives what a real client keeps to itself: no site runs it. `told` says from which field of a
    method a setting comes that has another name; `field=value` if it is whether the field has that value, and `*` if
    the server may choose it.

    >>> @coterie.program
    ... def count(clients):
    ...     '''How many samples there are of each label.'''
    ...     return {"labels": clients.label_counts()}
    >>> coterie.simulate(clients=3, net="mlp").run(count).labels.shape
    torch.Size([3, 10])
    """
    if function is None:
        return partial(program, scoring=scoring, letters=letters, simulated=simulated, told=told, gives=gives)
    made = Program(function, scoring, letters, simulated, told, gives)
    programs[made.name] = made
    return made


def program_named(name: str) -> Program:
    """A registered program by its name.

    >>> coterie.programs.program_named("coterie.programs.train") is coterie.programs.train
    True
    """
    if name not in programs:
        raise unknown("program", name, programs)
    return programs[name]


@program(told={"pull": "mu"}, gives={"model": MODEL})
def train(clients: Clients, start: Models, local: LocalTraining, pull: float = 0.0) -> Outputs:
    """Train on the client's own data, pulled towards the start if asked: the client of FedAvg and FedProx.

    >>> fed = coterie.simulate(clients=3, net="mlp")
    >>> fed.run(coterie.programs.train, shared=fed.new_model(), local=coterie.LocalTraining()).model.shape
    (3,)
    """
    return {"model": clients.train(start, local, pull=pull).models}


def _evaluated(net: Net, asked: Mapping[str, Any]) -> Declared:
    several = tuple(asked["models"].shape)
    share = replace(SHARE, shape=several) if net.task.score == "accuracy" else Output(float, several)
    return {"accuracy": share, "loss": replace(NUMBER, shape=several), "evaluated": COUNT}


@program(told={"on": "*"}, gives=_evaluated)
def evaluate(clients: Clients, models: Models, on: str = "validation") -> Outputs:
    """Accuracy and mean loss of models on the client's own data (0 if it has none), and the number of samples.

    >>> fed = coterie.simulate(clients=3, net="mlp")
    >>> fed.run(coterie.programs.evaluate, shared=fed.new_model()).accuracy.shape
    torch.Size([3])
    """
    result = clients.evaluate(models, on)
    return {"accuracy": result.accuracy.nan_to_num(0), "loss": result.loss.nan_to_num(0), "evaluated": result.samples}


@program(told={"on": "*"}, gives=lambda net, asked: {"choice": Output(int, least=0, most=len(asked["models"]) - 1)})
def choose(clients: Clients, models: Models, on: str = "train") -> Outputs:
    """The place of the model, of several, that fits the client's own data best.

    >>> fed = coterie.simulate(clients=3, net="mlp")
    >>> fed.run(coterie.programs.choose, shared=fed.new_models(2)).choice.shape
    torch.Size([3])
    """
    return {"choice": clients.best_fit(models, on)}


@program(told={"on": "*"}, gives=lambda net, asked: {"label_histogram": Output(int, (net.classes,), least=0)})
def label_histogram(clients: Clients, on: str = "train") -> Outputs:
    """How often the client has each label.

    >>> fed = coterie.simulate(clients=3, net="mlp")
    >>> bool((fed.run(coterie.programs.label_histogram).label_histogram.sum(1).numpy() == fed.sizes).all())
    True
    """
    return {"label_histogram": clients.label_counts(on)}


@program(simulated=True)
def own_prior(clients: Clients) -> Outputs:
    """What the client adds to what models give for its data; a real one keeps it to itself."""
    assert clients.prior is not None
    return {"prior": clients.prior}


@program(gives={"moments": Output(float, (3, None))})
def moments(clients: Clients) -> Outputs:
    """How many values each column has, their sum and the sum of their squares: all that scaling is made of.

    >>> coterie.simulate(clients=3, net="mlp").run(coterie.programs.moments).moments.shape
    torch.Size([3, 3, 1])
    """
    return {"moments": clients.moments()}


def _predicted(net: Net, asked: Mapping[str, Any]) -> Declared:
    return {"predictions": Output(float, (*asked["models"].shape, len(asked["inputs"]), None))}


@program(gives=_predicted)
def predict(clients: Clients, models: Models, inputs: Tensor) -> Outputs:
    """What models give for prepared inputs, before the softmax.

    >>> fed = coterie.simulate(clients=3, net="mlp")
    >>> fed.run(coterie.programs.predict, shared=fed.new_model(), inputs=torch.zeros(3, 4, 64)).predictions.shape
    torch.Size([3, 4, 10])
    """
    return {"predictions": clients.predict(models, inputs)}
