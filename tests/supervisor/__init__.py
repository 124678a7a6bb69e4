"""Tests of supervisor.py."""
