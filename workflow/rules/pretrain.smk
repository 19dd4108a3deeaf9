# Stage 4: training from scratch, in segments that each fit a job's walltime.
#
# The checkpoints stand in the store, owned by the trainer: Snakemake sees only the small manifest of a finished segment.


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
    threads: W.threads("train", CORES)
    resources:
        mem_mb=W.resource("train", "mem_mb"),
        runtime=W.resource("train", "runtime"),
        nodes=W.machine.nodes,
        tasks=W.tasks,
        cpus_per_task=W.rank_cpus(CORES),
        mpi=W.mpi,
        launch=W.launch(CORES),
    params:
        config=W.config,
        spec=lambda wc: W.spec("train", wc.run),
        init=lambda wc, input: f"--init {input.init}" if "init" in input.keys() else "",
        store=W.experiment.store,
        walltime=W.walltime,
    shell:
        "dithc launch {resources.launch} -- dithc train --config {params.config} --run {wildcards.run} "
        "--latents {input.latents} {params.init} --store {params.store} --until {wildcards.step} "
        "{params.walltime} --out {output} 2>&1 | tee -i {log}"
