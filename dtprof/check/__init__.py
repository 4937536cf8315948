"""Deciding whether something got slower: pairs of commands, runs against a baseline, drift over time."""
