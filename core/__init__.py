"""palestra: scientific environments, agents, controllers and checkable certificates.

This package is the core that everything else stands on. It knows no family of environments.
"""

__version__ = "0.1.0"
