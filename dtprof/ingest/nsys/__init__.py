"""Nsight Systems reports, as ``nsys export`` writes them: SQLite, Parquet or Arrow, to the tables of one part per process."""
