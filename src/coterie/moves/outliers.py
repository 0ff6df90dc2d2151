"""Who is too far off all others: a bound on what a single client can do to a mean.

The rule looks at one number of each client, such as how far its model is from the one that it was sent. Clients differ
honestly, by orders of magnitude where one has few samples and another many, so the bound follows the round's own
distribution: the median of the logarithms plus four deviations, estimated by the median absolute deviation, but at
least `FACTOR` and at most `ABSURD` times the median. Nothing below a floor is ever too far: where all others have
stopped moving, a client that still moves is none to be left out.

As long as more than half of the clients are honest, the others can move neither the median nor the deviation beyond
what honest ones have. Of two, nobody can say who is wrong: then only what is `ABSURD` times the floor is too far.

>>> from coterie.moves.outliers import far_off
>>> far_off(np.array([1.0, 2.0, 3.0, 40.0]), np.ones(4)).tolist()
[False, False, False, True]
>>> far_off(np.array([0.01, 0.02, 0.01, 0.9]), np.ones(4)).tolist()  # all below the floor
[False, False, False, False]
"""

import numpy as np

FACTOR = 10.0
"""How many times the median is at least allowed."""

ABSURD = 1000.0
"""How many times the median is too far however clients differ, and the floor where there is nobody to compare with."""

_DEVIATIONS = 4 * 1.4826
"""Four standard deviations, as multiples of the median absolute deviation of a normal distribution."""


def far_off(distances: np.ndarray, floors: np.ndarray, factor: float = FACTOR) -> np.ndarray:
    """Which of these distances [client] is too far off the others; one that is not a number never is.

    `floors` [client] says below which distance a client is never too far.
    """
    there = ~np.isnan(distances)
    if there.sum() < 3:
        return distances > ABSURD * floors
    # What is far below its floor is as good as nothing.
    logs = np.log(np.maximum(distances, np.maximum(floors / ABSURD, np.finfo(float).tiny))[there])
    middle = np.median(logs)
    allowed = max(np.log(factor), _DEVIATIONS * np.median(np.abs(logs - middle)))
    # However much clients differ, what is absurd is so.
    bound = np.exp(middle + min(allowed, np.log(ABSURD)))
    return distances > np.maximum(bound, floors)
