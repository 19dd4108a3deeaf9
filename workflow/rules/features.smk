# Stage 7: features of real and of generated images, by the same extractor.


rule extractor:
    input:
        tiles=lambda wc: W.path(
            "tiles", W.experiment.extractors[wc.extractor].trained_on
        ),
    output:
        W.path("extractors", "{extractor}"),
    log:
        W.log("extractor/{extractor}"),
    conda:
        "../envs/dithc.yaml"
    threads: W.threads("extractor", CORES)
    resources:
        mem_mb=W.resource("extractor", "mem_mb"),
        runtime=W.resource("extractor", "runtime"),
    params:
        config=W.config,
        spec=lambda wc: W.spec("extractor", wc.extractor),
    shell:
        "OMP_NUM_THREADS={threads} dithc extractor --config {params.config} --extractor {wildcards.extractor} "
        "--tiles {input.tiles} --out {output} 2>&1 | tee -i {log}"


rule features_real:
    input:
        tiles=W.path("tiles", "{dataset}"),
        extractor=lambda wc: W.extractor_of(wc.extractor),
    output:
        W.path("features", "{dataset}.{split}.{images}.{extractor}"),
    log:
        W.log("features/{dataset}.{split}.{images}.{extractor}"),
    conda:
        "../envs/dithc.yaml"
    threads: W.threads("features", CORES)
    resources:
        mem_mb=W.resource("features", "mem_mb"),
        runtime=W.resource("features", "runtime"),
    params:
        config=W.config,
        spec=lambda wc: W.spec("features", wc.extractor),
    shell:
        "OMP_NUM_THREADS={threads} dithc features --config {params.config} --extractor {wildcards.extractor} "
        "--trained {input.extractor} --tiles {input.tiles} --split {wildcards.split} --images {wildcards.images} --out {output} 2>&1 | tee -i {log}"


rule features_generated:
    input:
        samples=W.path("samples", "{evaluation}"),
        extractor=lambda wc: W.extractor_of(
            W.experiment.evaluations[wc.evaluation].extractor
        ),
    output:
        W.path("features", "{evaluation}"),
    log:
        W.log("features/{evaluation}"),
    conda:
        "../envs/dithc.yaml"
    threads: W.threads("features", CORES)
    resources:
        mem_mb=W.resource("features", "mem_mb"),
        runtime=W.resource("features", "runtime"),
    params:
        config=W.config,
        spec=lambda wc: W.spec(
            "features", W.experiment.evaluations[wc.evaluation].extractor
        ),
        extractor=lambda wc: W.experiment.evaluations[wc.evaluation].extractor,
    shell:
        "OMP_NUM_THREADS={threads} dithc features --config {params.config} --extractor {params.extractor} "
        "--trained {input.extractor} --samples {input.samples} --out {output} 2>&1 | tee -i {log}"
