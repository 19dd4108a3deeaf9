# Stage 7: features of real and generated images, from the same extractor.


rule extractor:
    input:
        tiles=lambda wc: W.path(
            "tiles", W.experiment.extractors[wc.extractor].train_dataset
        ),
    output:
        W.path("extractors", "{extractor}"),
    log:
        W.log("extractor/{extractor}"),
    conda:
        "../envs/dithc.yaml"
    threads: W.jobs.threads("extractor")
    resources:
        cpus_per_node=W.jobs.threads("extractor"),
        mem_mb=lambda wc: W.jobs.mem_mb("extractor", wc.extractor),
        runtime=lambda wc: W.jobs.runtime("extractor", wc.extractor),
    params:
        config=W.config,
        spec=lambda wc: W.spec("extractor", wc.extractor),
    shell:
        "OMP_NUM_THREADS={threads} dithc extractor --config {params.config:q} --extractor {wildcards.extractor} "
        "--tiles {input.tiles:q} --out {output:q} 2>&1 | tee -i {log:q}"


rule features_real:
    input:
        tiles=W.path("tiles", "{dataset}"),
        extractor=lambda wc: W.extractor_of(wc.extractor),
    output:
        W.path("features", "{dataset}.{split}.{images}.{extractor}"),
    log:
        W.log("features/{dataset}.{split}.{images}.{extractor}"),
    group:
        "evaluate"
    conda:
        "../envs/dithc.yaml"
    threads: W.jobs.threads("features")
    resources:
        cpus_per_node=W.jobs.group_cpus("features"),
        mem_mb=lambda wc: W.jobs.mem_mb("features", wc.extractor),
        runtime=lambda wc: W.jobs.runtime("features", wc.extractor),
    params:
        config=W.config,
        spec=lambda wc: W.spec("features", wc.extractor),
        measured=lambda wc: W.measured(
            f"{wc.dataset}.{wc.split}.{wc.images}.{wc.extractor}"
        ),
    shell:
        "OMP_NUM_THREADS={threads} dithc features --config {params.config:q} --extractor {wildcards.extractor} "
        "--extractor-manifest {input.extractor:q} --tiles {input.tiles:q} --split {wildcards.split} --num-images {wildcards.images} {params.measured} --out {output:q} 2>&1 | tee -i {log:q}"


rule features_generated:
    input:
        samples=W.path("samples", "{evaluation}"),
        extractor=lambda wc: W.extractor_of(W.extractor_name(wc.evaluation)),
    output:
        W.path("features", "{evaluation}"),
    log:
        W.log("features/{evaluation}"),
    group:
        "evaluate"
    conda:
        "../envs/dithc.yaml"
    threads: W.jobs.threads("features")
    resources:
        cpus_per_node=W.jobs.group_cpus("features"),
        mem_mb=lambda wc: W.jobs.mem_mb("features", W.extractor_name(wc.evaluation)),
        runtime=lambda wc: W.jobs.runtime("features", W.extractor_name(wc.evaluation)),
    params:
        config=W.config,
        spec=lambda wc: W.spec("features", W.extractor_name(wc.evaluation)),
        extractor=lambda wc: W.extractor_name(wc.evaluation),
        measured=lambda wc: W.measured(wc.evaluation),
    shell:
        "OMP_NUM_THREADS={threads} dithc features --config {params.config:q} --extractor {params.extractor} "
        "--extractor-manifest {input.extractor:q} --samples {input.samples:q} {params.measured} --out {output:q} 2>&1 | tee -i {log:q}"
