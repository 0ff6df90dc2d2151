"""Real sites behind a Flower SuperLink: the engine on the server's side, and a site's own process on the other."""
