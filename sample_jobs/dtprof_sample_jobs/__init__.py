"""Reference training jobs, one file per kind of parallelism, each to be read in one sitting.

dtprof job ddp --ranks 2
torchrun --nproc_per_node 2 -m dtprof_sample_jobs.ddp --out runs/ddp
"""

JOBS = {
    "ddp": "dtprof_sample_jobs.ddp",
    "fsdp": "dtprof_sample_jobs.fsdp",
    "pipeline": "dtprof_sample_jobs.pipeline",
    "tensor_parallel": "dtprof_sample_jobs.tensor_parallel",
    "context_parallel": "dtprof_sample_jobs.context_parallel",
    "hybrid": "dtprof_sample_jobs.hybrid",
    "moe": "dtprof_sample_jobs.moe",
    "parameter_server": "dtprof_sample_jobs.parameter_server",
    "elastic": "dtprof_sample_jobs.elastic",
    "collectives": "dtprof_sample_jobs.collectives",
}
