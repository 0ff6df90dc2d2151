"""Real sites behind a Flower SuperLink: the engine on the server's side, and the process of a site."""
