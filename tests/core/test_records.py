"""Names in files and messages: they stay as they first were, wherever code moves to and whatever it is called."""

from importlib import import_module

import pytest

import coterie
from coterie.core.records import _LASTING, records, stored_name
from coterie.nets import codec


@pytest.fixture(autouse=True, scope="module")
def _everything_imported():
    coterie.methods.load()


@pytest.mark.parametrize("name", _LASTING)
def test_every_name_that_lasts_belongs_to_something_that_there_is(name):
    try:
        import_module(name)
    except ModuleNotFoundError:
        module, _, own = name.rpartition(".")
        assert stored_name(getattr(import_module(module), own)) == _LASTING[name]


def test_no_two_classes_are_stored_under_one_name():
    assert all(stored_name(cls) == name for name, cls in records.items())


def test_a_state_is_read_under_the_name_that_it_first_had():
    fed = coterie.simulate(clients=3, net="mlp")
    nets = {fed.net.name: fed.net}
    content = codec.dump(coterie.FedAvg().begin(fed))
    assert b"coterie.methods.fedavg.State" in content
    assert b"FedAvgState" not in content
    assert type(codec.load(content, nets)).__name__ == "FedAvgState"
