# Stage 4: training from scratch, in segments that each fit a job's walltime.
#
# The trainer owns the checkpoints in the store. Snakemake tracks only the small manifest of a finished segment.


rule pretrain:
    input:
        unpack(lambda wc: W.train_input(wc.run, int(wc.step))),
    output:
        W.segment("{run}", "{step}"),
    log:
        W.log("train/{run}/step_{step}"),
    wildcard_constraints:
        run="|".join(W.pretrainings) or "(?!)",
    conda:
        "../envs/dithc.yaml"
    threads: W.jobs.threads("train")
    resources:
        cpus_per_node=W.jobs.threads("train"),
        mem_mb=lambda wc: W.jobs.mem_mb("train", wc.run),
        runtime=lambda wc: W.jobs.runtime("train", wc.run),
        nodes=W.jobs.machine.nodes,
        tasks=W.jobs.tasks,
        tasks_per_node=W.jobs.tasks_per_node,
        cpus_per_task=W.jobs.rank_cpus,
        mpi=W.jobs.mpi,
        launch=lambda wc: W.jobs.launch("train", wc.run),
    params:
        config=W.config,
        spec=lambda wc: W.spec("train", wc.run),
        init=lambda wc, input: (
            f"--init-from {shlex.quote(input.init)}" if "init" in input.keys() else ""
        ),
    shell:
        "dithc launch {resources.launch} -- dithc train --config {params.config:q} --run {wildcards.run} "
        "--latents {input.latents:q} {params.init} --until-step {wildcards.step} "
        "--out {output:q} 2>&1 | tee -i {log:q}"
