"""Environments, one folder a family.

Inside a family the physics comes first, as plain functions on arrays; then the environment
with its spaces, reward and episode logic; then its pictures. Families never import each other.
"""
