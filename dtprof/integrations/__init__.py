"""Callbacks of other people's training loops: Lightning and the Hugging Face Trainer; recipes are in docs/integrations.md.

Nothing here is imported by dtprof itself: ``from dtprof.integrations.lightning import DtprofCallback``.
"""
