"""What a spectrometer measured, as times and complex values, from the files it writes.

`read_measurement` takes tables (`.csv`, `.tsv`, `.txt`), JCAMP-DX (`.dx`, `.jdx`) and folders of
TopSpin and Spinsolve. Values are complex or real, never magnitudes: noise makes those too large.
"""

from .measurement import KINDS, Measurement, read_measurement

__all__ = ["KINDS", "Measurement", "read_measurement"]
