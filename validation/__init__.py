"""Proof by numbers: runs inside a realization, with the standard library and the stack only."""
