"""The moves that methods are made of: who is alike, who belongs together, whose models are mixed for whom."""
