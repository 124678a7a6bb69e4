"""Outbound mail: what it is made of, where it waits, how it leaves."""
