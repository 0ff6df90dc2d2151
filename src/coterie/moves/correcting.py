"""SCAFFOLD's client: training that corrects its drift with control variates (Karimireddy et al., ICML 2020)."""

from coterie.clients.clients import Clients
from coterie.clients.programs import Outputs
from coterie.moves import server_steps
from coterie.nets.stacks import Changes, Models
from coterie.training.local import LocalTraining


def train_controlled(
    clients: Clients, start: Models, control: Changes, local: LocalTraining, first: Changes, momentum: float
) -> Outputs:
    """SCAFFOLD's client, whose first control variate is `first`, and whose gradients are counted for this momentum.

    >>> from coterie.moves.correcting import train_controlled
    >>> @coterie.program
    ... def corrected(clients, start, local):
    ...     return train_controlled(clients, start, start.zeros(), local, start.zeros(), momentum=0.0)
    >>> fed = coterie.simulate(clients=3, net="mlp")
    >>> sorted(fed.run(corrected, shared=fed.new_model(), local=coterie.LocalTraining(steps=1)).outputs)
    ['control_change', 'model']
    """
    own = clients.state("control", otherwise=first)
    trained = clients.train(start, local, push=control - own)
    gradients = server_steps.weight_of_steps(trained.steps, momentum)
    new = server_steps.control_variate(own, control, start, trained.models, gradients * local.rate)
    clients.keep(control=new)
    return {"model": trained.models, "control_change": new - own}
