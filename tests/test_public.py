"""What is public can be imported, and the example at each public name works as it stands."""

import doctest
import inspect

import numpy as np
import pytest
import torch

import coterie

MODULES = [name for name in coterie.__all__ if inspect.ismodule(getattr(coterie, name))]
WITH_EXAMPLES = [name for name in coterie.__all__ if name not in (*MODULES, "__version__", "methods", "nets")]


@pytest.mark.parametrize("name", coterie.__all__)
def test_every_public_name_is_there(name):
    assert getattr(coterie, name) is not None


@pytest.fixture
def registries():
    """Whatever an example registers is gone afterwards."""
    kept = [(registry, dict(registry)) for registry in (coterie.methods._classes, coterie.programs.programs)]
    yield
    for registry, content in kept:
        registry.clear()
        registry.update(content)


@pytest.mark.parametrize("name", WITH_EXAMPLES)
@pytest.mark.usefixtures("registries")
def test_the_example_at_a_public_name_works(name):
    thing, names = getattr(coterie, name), {"coterie": coterie, "np": np, "torch": torch}
    (test,) = doctest.DocTestFinder(recurse=False).find(thing, name, globs=names)
    assert test.examples
    told = []
    failed, _ = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=told.append)
    assert not failed, "".join(told)
