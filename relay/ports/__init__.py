"""What every port is served with, whatever is spoken there: who is let in, TLS, limits."""
