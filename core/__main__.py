"""`python -m palestra` is the command line."""

import importlib
import sys

if __name__ == "__main__":
    sys.exit(importlib.import_module("palestra.experiments.cli").main())
