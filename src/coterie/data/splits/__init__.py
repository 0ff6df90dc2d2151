"""Every published way to split data among clients that Coterie knows, by name in `split_rules`.

Each rule is seeded, ends always, and returns the samples of each client in ascending order: their order carries no
information, and sorted ones are the same however they were dealt.
"""

from coterie.data.split import split_rules
from coterie.data.splits.autocfl import AutoCFLInput, AutoCFLLabel, AutoCFLMotivation
from coterie.data.splits.cafa import CAFAClasses, CAFAMixed
from coterie.data.splits.dirichlet import Dirichlet, Quantity
from coterie.data.splits.known import Given, Natural
from coterie.data.splits.plain import IID, LabelSkew
from coterie.data.splits.slfed import SLFedDist0, SLFedDist1, SLFedDist2, SLFedDist3

__all__ = [
    "IID",
    "AutoCFLInput",
    "AutoCFLLabel",
    "AutoCFLMotivation",
    "CAFAClasses",
    "CAFAMixed",
    "Dirichlet",
    "Given",
    "LabelSkew",
    "Natural",
    "Quantity",
    "SLFedDist0",
    "SLFedDist1",
    "SLFedDist2",
    "SLFedDist3",
    "split_rules",
]
