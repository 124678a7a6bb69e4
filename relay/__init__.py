"""Relay: one supervised program that owns a product's mail."""

__version__ = "0.1.0"
