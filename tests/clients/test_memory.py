"""What clients remember, and how a lost round leaves no trace."""

import resource
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coterie.clients.memory import Memory
from coterie.core.errors import CoterieError
from support.worlds import mlp, normed, world

ALL = torch.arange(3)


def at(*positions):
    return torch.tensor(positions)


def numbers(*values):
    return torch.tensor(values, dtype=torch.float64)


def content(memory):
    """Who knows what."""
    return {
        name: {client: memory.values[name][client].tolist() for client in range(memory.clients) if known[client]}
        for name, known in memory.known.items()
        if known.any()
    }


@pytest.fixture
def memory():
    """Three clients; the first and the last have kept a mark."""
    memory = Memory(3)
    memory.update(at(0, 2), {"mark": numbers(1, 3)})
    memory.commit()
    return memory


def test_what_is_written_can_be_read_by_client(memory):
    assert content(memory) == {"mark": {0: 1.0, 2: 3.0}}
    some = memory.rows(at(2, 1))
    assert content(some) == {"mark": {0: 3.0}}


def test_rows_leave_out_names_that_nobody_among_them_has(memory):
    assert list(memory.rows(at(1))) == []


def test_rows_are_copies(memory):
    some = memory.rows(at(0))
    some.update(at(0), {"mark": numbers(9)})
    assert content(memory) == {"mark": {0: 1.0, 2: 3.0}}


def test_rollback_restores_the_values_before_all_writes_of_the_round(memory):
    memory.update(ALL, {"mark": numbers(7, 8, 9)})
    memory.update(at(0), {"mark": numbers(10)})
    memory.rollback()
    assert content(memory) == {"mark": {0: 1.0, 2: 3.0}}


def test_commit_makes_writes_final(memory):
    memory.update(ALL, {"mark": numbers(7, 8, 9)})
    memory.commit()
    memory.rollback()
    assert content(memory) == {"mark": {0: 7.0, 1: 8.0, 2: 9.0}}


def test_rollback_of_some_clients_leaves_the_others(memory):
    memory.update(ALL, {"mark": numbers(7, 8, 9)})
    memory.update(at(1, 2), {"mark": numbers(10, 11)})
    memory.rollback(at(1, 2))
    assert content(memory) == {"mark": {0: 7.0, 2: 3.0}}
    memory.rollback()
    assert content(memory) == {"mark": {0: 1.0, 2: 3.0}}


def test_a_client_that_was_rolled_back_may_write_again(memory):
    memory.update(ALL, {"mark": numbers(7, 8, 9)})
    memory.rollback(at(0))
    memory.update(at(0), {"mark": numbers(20)})
    memory.commit()
    assert content(memory) == {"mark": {0: 20.0, 1: 8.0, 2: 9.0}}


def test_new_names_vanish_on_rollback(memory):
    memory.update(ALL, {"new": torch.ones(3, 2)})
    memory.rollback()
    assert list(memory) == ["mark"]
    memory.update(at(1), {"new": numbers(5)})  # in another shape, as if it had never been there
    assert content(memory)["new"] == {1: 5.0}


def test_new_names_vanish_with_the_last_client_that_has_one(memory):
    memory.update(at(0, 1), {"new": torch.ones(2, 2)})
    memory.rollback(at(0))
    memory.rollback(at(1))
    memory.commit()
    assert list(memory) == ["mark"]


@pytest.mark.parametrize(
    "other",
    [torch.ones(3, 2), torch.ones(3, dtype=torch.int64), torch.ones(3, dtype=torch.float32), world(mlp).models(3)],
    ids=["shape", "whole numbers", "precision", "models"],
)
def test_a_name_keeps_its_shape_and_type(memory, other):
    with pytest.raises(CoterieError, match="keeps 'mark' in another shape or type"):
        memory.update(ALL, {"mark": other})


@pytest.mark.parametrize("here", [world(normed, shape=(2, 4, 4)), world(mlp)], ids=["statistics", "none"])
def test_models_are_kept_with_their_statistics(here):
    models = here.models(3)
    memory = Memory(3)
    memory.update(at(2, 0), {"model": models[:2]})
    found = memory.rows(at(0, 2)).values["model"]
    assert torch.equal(found.parameters, models.parameters[[1, 0]])
    assert torch.equal(found.buffers, models.buffers[[1, 0]])
    memory.rollback()
    assert list(memory) == []


WRITES = st.lists(
    st.tuples(st.sets(st.integers(0, 3), min_size=1), st.sampled_from("ab"), st.integers(0, 99)), max_size=6
)


@given(before=WRITES, during=WRITES, lost=st.sets(st.integers(0, 3)))
def test_memory_after_a_lost_round_is_memory_before_it(before, during, lost):
    memory, expected = Memory(4), {"a": {}, "b": {}}
    for clients, name, value in before:
        _write(memory, expected, clients, name, value)
    memory.commit()
    kept = {name: dict(rows) for name, rows in expected.items()}
    for clients, name, value in during:
        _write(memory, expected, clients, name, value)
    memory.rollback(torch.tensor(sorted(lost), dtype=torch.int64))
    for name, rows in expected.items():
        for client in lost:
            rows.pop(client, None)
            rows |= {client: kept[name][client]} if client in kept[name] else {}
    assert content(memory) == {name: dict(sorted(rows.items())) for name, rows in expected.items() if rows}
    memory.rollback()
    assert content(memory) == {name: dict(sorted(rows.items())) for name, rows in kept.items() if rows}


def _write(memory, expected, clients, name, value):
    positions = torch.tensor(sorted(clients))
    memory.update(positions, {name: torch.full((len(clients),), value)})
    expected[name] |= dict.fromkeys(clients, value)


def test_a_snapshot_shows_what_was_there_when_it_was_made(memory):
    before = memory.snapshot()
    assert before["mark"]["rows"].tolist() == [1, 3]
    memory.update(ALL, {"mark": numbers(7, 8, 9), "new": numbers(0, 0, 0)})
    assert list(before) == ["mark"]
    assert before["mark"]["clients"].tolist() == [0, 2]
    assert before["mark"]["rows"].tolist() == [1, 3]
    after = memory.snapshot()
    memory.rollback()
    assert after["mark"]["rows"].tolist() == [7, 8, 9]


def test_rows_side_by_side_are_not_copied_for_a_snapshot_that_is_stored_at_once(memory):
    memory.update(at(1), {"mark": numbers(8)})
    memory.update(at(1, 2), {"more": numbers(5, 6)})
    entries = dict(memory.snapshot())
    assert [entry["clients"].tolist() for entry in entries.values()] == [[0, 1, 2], [1, 2]]
    assert [entry["rows"].tolist() for entry in entries.values()] == [[1, 8, 3], [5, 6]]
    for name, entry in entries.items():
        assert entry["rows"].untyped_storage().data_ptr() == memory.values[name].untyped_storage().data_ptr()


def test_rows_are_copied_only_if_they_are_read(memory, monkeypatch):
    read = []
    monkeypatch.setattr(
        "coterie.clients.memory._taken", lambda value, positions: read.append(value) or value[positions]
    )
    memory.update(ALL, {"large": torch.zeros(3, 50)})
    some = memory.rows(at(2, 0))
    assert set(some) == {"mark", "large"}
    assert not read
    assert some.values["mark"].tolist() == [3, 1]
    assert len(read) == 1


def test_clients_can_be_counted_from_the_end(memory):
    memory.update(at(-1), {"mark": numbers(5)})
    assert memory.rows(at(-1)).values["mark"].tolist() == [5]
    memory.rollback(at(-1))
    assert content(memory) == {"mark": {0: 1.0, 2: 3.0}}


def test_a_value_is_kept_where_its_home_is():
    memory = Memory(3, home=lambda rows: torch.device("meta" if rows.dim() > 1 else "cpu"))
    memory.update(at(1), {"mark": numbers(5), "model": torch.ones(1, 4)})
    assert memory.values["mark"].device.type == "cpu"
    assert memory.values["model"].device.type == "meta"
    assert memory.size_on(torch.device("meta")) == 3 * 4 * 4


@pytest.mark.skipif(not Path("/proc/self/statm").is_file(), reason="reads how much memory is in use from Linux")
def test_clients_that_keep_nothing_cost_no_memory():
    def in_use():
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    before = in_use()
    memory = Memory(100_000)
    memory.update(at(7, 99_999), {"large": torch.ones(2, 1000)})
    assert memory.rows(at(7)).values["large"].sum() == 1000
    assert memory.values["large"].dtype == torch.float32
    assert in_use() - before < 100e6  # of 400 MB
