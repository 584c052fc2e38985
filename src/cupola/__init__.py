"""Cupola: federated learning and analysis that shows its cost in communication, utility, privacy."""

__version__ = "0.1.0"
