"""gpuckpt takes a running GPU job off its host and brings it back."""

__version__ = "0.1.0"
