"""How clients train: the one local loop, the forms in which it is computed, how models do on samples."""
