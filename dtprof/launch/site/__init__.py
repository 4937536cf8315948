"""In front of PYTHONPATH while a command is measured; holds ``sitecustomize`` and nothing else."""
