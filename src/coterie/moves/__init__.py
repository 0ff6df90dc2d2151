"""The moves that methods are made of: who is alike, who belongs together, whose models are mixed for whom.

They fit each other. Evidence is a square matrix of similarities or distances between clients. A grouping of it is a
boolean matrix [group, client], whose rows may overlap. Mixing makes of that a row-stochastic matrix, which multiplies a
stack of models. So any evidence goes with any grouping and any mixing; `composing` puts them together by name.
"""
