"""Environments, one folder a family.

Inside a family the physics comes first, as plain functions on arrays; then the environment
with its spaces, reward and episode logic; then its pictures. Families never import each other.
"""

from palestra.registry import Entry

CATALOGUE = (
    Entry(
        "NMRRelax",
        "palestra.envs.nmr.env:NMRRelax",
        "bring a nuclear magnetisation back to equilibrium by pulses and delays",
    ),
    Entry(
        "NMRAlign",
        "palestra.envs.nmr.env:NMRAlign",
        "bring a nuclear magnetisation to the largest detectable signal",
    ),
    Entry(
        "NMRAbundance",
        "palestra.envs.nmr.abundance:NMRAbundance",
        "measure the abundance of an element to a given precision in the least time",
    ),
    Entry(
        "NMRTeam",
        "palestra.envs.nmr.team:NMRTeam",
        "measure an abundance as a team: one aligns spins, one relaxes them, one toggles",
        agents=True,
    ),
)
