"""The commands of `palestra`, a file a group; importing a file adds its commands to `app`."""

from . import catalogue, environments, nmr, policies, recordings, runs, training, trust, watching
from .app import app

__all__ = [
    "app",
    "catalogue",
    "environments",
    "nmr",
    "policies",
    "recordings",
    "runs",
    "training",
    "trust",
    "watching",
]
