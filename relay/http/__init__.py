"""The HTTP control plane: a quart-trio application, and the server that carries it."""
