"""Letters: what one client's program writes to another client's.

A method hands letters on and never opens them. In simulation the content simply stays where it is; over a real network
a site seals it for the receiver before it leaves (`coterie.clients.sealing`), and the server relays bytes that it
cannot read.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.core.records import record

log = logging.getLogger("coterie")

Like = tuple[torch.dtype, *tuple[int | None, ...]]
"""The type and the shape that a tensor in a letter must have; None stands for any length."""


@record
@dataclass(frozen=True, eq=False)
class Letter:
    """A letter from one client to another. Whoever carries it can see all of it but the content."""

    sender: str
    receiver: str
    subject: str
    """What it is about; the ledger counts its bytes under this name."""
    content: Any
    """Tensors by name, or sealed bytes while the letter travels."""

    @property
    def size(self) -> int:
        """Bytes of the content."""
        if isinstance(self.content, Mapping):
            return sum(tensor.numel() * tensor.element_size() for tensor in self.content.values())
        return len(self.content)


class Letters:
    """Letters on their way, which a method can do nothing with but count them and hand them on."""

    def __init__(self, letters: Iterable[Letter] = ()) -> None:
        self._letters = tuple(letters)

    def __len__(self) -> int:
        return len(self._letters)

    def __add__(self, more: "Letters") -> "Letters":
        return Letters((*self._letters, *more._letters))

    def envelopes(self) -> Iterator[tuple[str, str, str, int]]:
        """Sender, receiver, subject and size of each letter: all that can be seen from outside."""
        return ((letter.sender, letter.receiver, letter.subject, letter.size) for letter in self._letters)

    def without(self, senders: Iterable[str]) -> "Letters":
        """The letters that are not from these clients."""
        left_out = set(senders)
        return Letters(letter for letter in self._letters if letter.sender not in left_out)

    def to(self, receiver: str) -> tuple[Letter, ...]:
        """The letters for one client: for engines, which deliver them."""
        return tuple(letter for letter in self._letters if letter.receiver == receiver)


def checked_content(content: Mapping[str, Any]) -> dict[str, Tensor]:
    """The content of a letter; an error if anything in it is not a tensor."""
    for name, value in content.items():
        if not isinstance(value, Tensor):
            raise CoterieError(f"letter: {name} is {type(value).__name__}, not a tensor")
    return dict(content)


def readable(letter: Letter, like: Mapping[str, Like]) -> bool:
    """Whether a letter has the tensors that are expected, and no others, with finite numbers; the log says if not."""
    content = letter.content
    if content.keys() != like.keys():
        return _unfit(letter, f"it has {', '.join(content) or 'nothing'}, not {', '.join(like)}")
    for name, (dtype, *shape) in like.items():
        tensor = content[name]
        lengths = zip(tensor.shape, shape, strict=False)
        fits = tensor.dim() == len(shape) and all(length in (own, None) for own, length in lengths)
        if tensor.dtype != dtype or not fits:
            return _unfit(letter, f"its {name} is {tensor.dtype} of shape {tuple(tensor.shape)}")
        if not tensor.isfinite().all():
            return _unfit(letter, f"its {name} is not finite")
    return True


def one_each(letters: Sequence[Letter], among: Iterable[str]) -> list[Letter]:
    """The letters of those among these names that have written exactly one; who writes two says nothing certain."""
    counted, known = Counter(letter.sender for letter in letters), set(among)
    for sender, count in counted.items():
        if count > 1:
            log.warning("%d letters from %s on one subject, of which none is read", count, sender)
    return [letter for letter in letters if counted[letter.sender] == 1 and letter.sender in known]


def _unfit(letter: Letter, why: str) -> bool:
    log.warning("the letter from %s to %s on %r is not read: %s", letter.sender, letter.receiver, letter.subject, why)
    return False
