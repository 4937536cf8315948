"""Reference training jobs, one file per kind of parallelism, each to be read in one sitting.

dtprof job ddp --ranks 2
torchrun --nproc_per_node 2 -m dtprof_sample_jobs.ddp --out runs/ddp
"""

JOBS = {
    "ddp": "dtprof_sample_jobs.ddp",
    "fsdp": "dtprof_sample_jobs.fsdp",
    "pipeline": "dtprof_sample_jobs.pipeline",
    "collectives": "dtprof_sample_jobs.collectives",
}
