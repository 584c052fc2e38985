"""Masked sums: totals nobody can look inside."""
