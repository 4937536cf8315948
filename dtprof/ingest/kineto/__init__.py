"""Kineto traces, as torch.profiler writes them: files to the tables of one part."""
