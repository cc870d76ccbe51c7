"""The control plane: custom resources in, engines and policy out, status back."""

from importlib.metadata import version

__version__ = version("tidegate")
