"""Collectors: each one both records raw files in the job and reads them back as tables at ingest."""
