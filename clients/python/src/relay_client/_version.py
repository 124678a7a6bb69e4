"""The version of this package, as pyproject.toml says it; a test holds the two together."""

__version__ = "0.1.0"
