"""Holdfast: a reservation engine that sells scarce things without ever selling one twice."""

__version__ = "0.1.0"
