"""Mixtures of experts: what even experts, or a capacity, would make of a measured step."""
