"""Replaying and changing a step graph."""
