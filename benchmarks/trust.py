"""SLFed's trust layer without any learning: the structure of the paper's Fig. 6 in seconds.

    python benchmarks/trust.py [--clients 50] [--rounds 50] [--groups 5]

Clients in groups, with a similarity of .9 within and .3 between them, meet and talk. Printed are, for one and two
meetings a round and both ways to store opinions: the round after which everybody has reached everybody, the mean
uncertainty and the clients in PAM_list after some rounds, and the mean similarity that clients see in their own group
and in others. The last is what the mixed models depend on.
"""

import argparse

import numpy as np

from coterie import trust

SHOWN = (1, 4, 10, 30, 50)
WITHIN, BETWEEN = 0.9, 0.3


def main() -> None:
    """Print the course of opinions."""
    parser = argparse.ArgumentParser()
    for name, default in (("clients", 50), ("rounds", 50), ("groups", 5), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    group = np.arange(options.clients) % options.groups
    same = group[:, None] == group
    others = ~np.eye(options.clients, dtype=bool)
    similarity = np.where(same, WITHIN, BETWEEN)
    shown = [number for number in SHOWN if number <= options.rounds]
    print("store       meetings  reached  round  uncertainty  in PAM_list (most)  s own group  s other groups")
    for store in ("persistent", "direct"):
        for direct in (1, 2):
            for number in shown:
                course = trust.course(similarity, number, direct, store, options.seed)
                seen = course.opinions[..., 0]
                print(
                    f"{store:<12}{direct:>8}{course.reached or '-':>9}{number:>7}"
                    f"{course.uncertainty[-1].mean():>13.3f}"
                    f"{course.chosen[-1].mean():>13.1f} {f'({course.chosen.max()})':>6}"
                    f"{seen[same & others].mean():>13.3f}{seen[~same].mean():>16.3f}"
                )


if __name__ == "__main__":
    main()
