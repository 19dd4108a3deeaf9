# Stage 3: an autoencoder where one is to be trained, and the latents of every tile.


rule codec:
    input:
        tiles=lambda wc: W.path("tiles", W.experiment.codecs[wc.codec].trained_on),
    output:
        W.path("codecs", "{codec}"),
    log:
        W.log("codec/{codec}"),
    conda:
        "../envs/dithc.yaml"
    threads: W.threads("codec", CORES)
    resources:
        mem_mb=W.resource("codec", "mem_mb"),
        runtime=W.resource("codec", "runtime"),
    params:
        config=W.config,
        spec=lambda wc: W.spec("codec", wc.codec),
    shell:
        "OMP_NUM_THREADS={threads} dithc codec --config {params.config} --codec {wildcards.codec} --tiles {input.tiles} --out {output} 2>&1 | tee -i {log}"


rule latents:
    input:
        tiles=W.path("tiles", "{dataset}"),
        codec=lambda wc: W.codec_of(wc.dataset),
    output:
        W.path("latents", "{dataset}"),
    log:
        W.log("latents/{dataset}"),
    conda:
        "../envs/dithc.yaml"
    threads: W.threads("latents", CORES)
    resources:
        mem_mb=W.resource("latents", "mem_mb"),
        runtime=W.resource("latents", "runtime"),
    params:
        config=W.config,
        spec=lambda wc: W.spec("latents", wc.dataset),
    shell:
        "OMP_NUM_THREADS={threads} dithc latents --config {params.config} --dataset {wildcards.dataset} --tiles {input.tiles} "
        "--codec {input.codec} --out {output} 2>&1 | tee -i {log}"
