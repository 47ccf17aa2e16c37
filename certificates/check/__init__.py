"""Checkers: they read a certificate and find out for themselves whether what it says is true.

They need NumPy and the standard library, nothing of palestra, and share no code with what found
the claim: this folder can be copied and run alone. One module a topic.
"""
