"""The ways to split data among clients, most of them published, by name in `split_rules`.

The same seed gives the same split. No rule draws forever. The samples of each client are in ascending order, so that
two splits with the same samples are equal.
"""

from coterie.data.split import split_rules
from coterie.data.splits.autocfl import AutoCFLInput, AutoCFLLabel, AutoCFLMotivation
from coterie.data.splits.cafa import CAFAChunks, CAFAClasses, CAFAConsecutive, CAFAMixed
from coterie.data.splits.dirichlet import Dirichlet, Quantity
from coterie.data.splits.known import Given, Natural, by_samples
from coterie.data.splits.plain import IID, LabelSkew
from coterie.data.splits.shifts import RotatedLabelSkew, SwappedLabels
from coterie.data.splits.slfed import SLFedDist0, SLFedDist1, SLFedDist2, SLFedDist3
