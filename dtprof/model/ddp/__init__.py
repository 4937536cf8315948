"""DistributedDataParallel as a model: gradients become ready, buckets fill, collectives run beside the backward pass."""
