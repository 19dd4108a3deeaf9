# Stage 3: training of the autoencoder if requested, and the latents of every tile.


rule codec:
    input:
        tiles=lambda wc: W.path("tiles", W.experiment.codecs[wc.codec].train_dataset),
    output:
        W.path("codecs", "{codec}"),
    log:
        W.log("codec/{codec}"),
    group:
        "encode"
    conda:
        "../envs/dithc.yaml"
    threads: W.jobs.threads("codec")
    resources:
        cpus_per_node=W.jobs.threads("codec"),
        mem_mb=lambda wc: W.jobs.mem_mb("codec", wc.codec),
        runtime=lambda wc: W.jobs.runtime("codec", wc.codec),
    params:
        config=W.config,
        spec=lambda wc: W.spec("codec", wc.codec),
    shell:
        "OMP_NUM_THREADS={threads} dithc codec --config {params.config:q} --codec {wildcards.codec} --tiles {input.tiles:q} --out {output:q} 2>&1 | tee -i {log:q}"


rule latents:
    input:
        tiles=W.path("tiles", "{dataset}"),
        codec=lambda wc: W.codec_of(wc.dataset),
    output:
        W.path("latents", "{dataset}"),
    log:
        W.log("latents/{dataset}"),
    group:
        "encode"
    conda:
        "../envs/dithc.yaml"
    threads: W.jobs.threads("latents")
    resources:
        cpus_per_node=W.jobs.group_cpus("latents"),
        mem_mb=lambda wc: W.jobs.mem_mb("latents", wc.dataset),
        runtime=lambda wc: W.jobs.runtime("latents", wc.dataset),
    params:
        config=W.config,
        spec=lambda wc: W.spec("latents", wc.dataset),
    shell:
        "OMP_NUM_THREADS={threads} dithc latents --config {params.config:q} --dataset {wildcards.dataset} --tiles {input.tiles:q} "
        "--codec {input.codec:q} --out {output:q} 2>&1 | tee -i {log:q}"
