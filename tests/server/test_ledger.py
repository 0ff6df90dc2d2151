"""Every byte, by direction and kind."""

from coterie.server.ledger import Ledger


def filled():
    ledger = Ledger()
    for direction, kind, amount in [
        ("down", "model", 100),
        ("up", "model", 90),
        ("up", "loss", 4),
        ("up", "model", 10),
        ("evaluation", "accuracy", 8),
        ("peer", "letter", 0),
    ]:
        ledger.add(direction, kind, amount)
    return ledger


def test_bytes_add_up_by_direction():
    ledger = filled()
    assert [ledger.total(direction) for direction in ("down", "up", "peer", "evaluation")] == [100, 104, 0, 8]


def test_kinds_are_told_apart_and_nothing_is_listed_that_did_not_cross():
    assert filled().by_kind() == {
        "down": {"model": 100},
        "evaluation": {"accuracy": 8},
        "up": {"loss": 4, "model": 100},
    }


def test_asking_changes_nothing():
    ledger = filled()
    before = ledger.by_kind()
    ledger.total("peer")
    assert ledger.by_kind() == before


def test_a_restored_ledger_counts_on():
    ledger, restored = filled(), Ledger()
    restored.add("down", "forgotten", 5)
    restored.restore(ledger.by_kind())
    assert restored.by_kind() == ledger.by_kind()
    restored.add("up", "loss", 4)
    assert restored.total("up") == 108
    assert ledger.total("up") == 104
