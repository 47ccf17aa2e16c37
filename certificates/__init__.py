"""Claims that a machine can re-check, their proofs, and independent checkers.

A certificate holds arrays and expression graphs, never code. The checkers share nothing with
the code that found the proof.
"""
