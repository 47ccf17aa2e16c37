"""Headline experiments, one file each, and the command line.

An experiment is data, a score and a picture: the fields of its dataclass are its options, its
claims say what must hold, and its report shows it.
"""
