"""What the sample jobs share: model, data, loop, options, faults."""
