"""How long a step takes: kernels, layers, communication, pipeline, optimizer; each from ceilings and a few fitted constants."""
