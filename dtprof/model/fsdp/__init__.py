"""FSDP2 as a model: units whose parameters are gathered before they are used and whose gradients are scattered after."""
