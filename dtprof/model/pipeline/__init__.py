"""Pipeline parallelism as a model: passes of stages on micro-batches in the order of a schedule."""
