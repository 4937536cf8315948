"""CUDA allocator snapshots: the pickles of ``torch.cuda.memory._dump_snapshot``, read without running anything in them."""
