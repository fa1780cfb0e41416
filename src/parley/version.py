"""The one place that knows which release this is."""

__version__ = "0.1.0"
