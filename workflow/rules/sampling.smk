# One image by one rank and by several, measured on this machine: a target of its own, whatever the experiment asks for:
# `snakemake sampling` (DiT-S/2 where it names no model).


rule measure_sampling:
    output:
        f"{W.root}/bench/sampling.json",
    log:
        W.log("bench/sampling"),
    conda:
        "../envs/dithc.yaml"
    threads: W.jobs.threads("bench")
    resources:
        node_cores=W.jobs.threads("bench"),
        mem_mb=W.jobs.mem_mb("bench"),
        runtime=W.jobs.runtime("bench"),
    params:
        arguments=W.benches.sampling,
    shell:
        "dithc bench sampling {params.arguments} --json {output:q} 2>&1 | tee -i {log:q}"


# A page of it alone, without the trainings of the experiment.
rule sampling:
    input:
        f"{W.root}/bench/sampling.json",
    output:
        html=f"{W.root}/sampling/report.html",
        figure=f"{W.root}/sampling/figures/sampling.png",
    log:
        W.log("sampling"),
    conda:
        "../envs/dithc.yaml"
    threads: 1
    resources:
        node_cores=1,
        mem_mb=W.jobs.mem_mb("report"),
        runtime=W.jobs.runtime("report"),
    params:
        config=W.config,
    shell:
        "dithc report --config {params.config:q} --sampling {input:q} --out {output.html:q} 2>&1 | tee -i {log:q}"
