"""Headline experiments, one file each, and the command line.

An experiment is data (the fields of its dataclass are its options), a score (its claims) and a
picture (its report).
"""

CATALOGUE = {
    "nmr-relax": "palestra.experiments.nmr_relax:NMRRelaxExperiment",
    "nmr-abundance": "palestra.experiments.nmr_abundance:NMRAbundanceExperiment",
    "nmr-unknown-relaxation": (
        "palestra.experiments.nmr_unknown_relaxation:NMRUnknownRelaxationExperiment"
    ),
}
