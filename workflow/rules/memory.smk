# Figure 9 and what AutoMem gives, measured on this machine: targets of their own, whatever the experiment asks for:
# `snakemake stepwise`, `snakemake automem` (DiT-S/2 where it names no model).


rule measure_stepwise:
    output:
        f"{W.root}/bench/stepwise.json",
    log:
        W.log("bench/stepwise"),
    conda:
        "../envs/dithc.yaml"
    threads: W.jobs.threads("bench")
    resources:
        node_cores=W.jobs.threads("bench"),
        mem_mb=W.jobs.mem_mb("bench"),
        runtime=W.jobs.runtime("bench"),
    params:
        arguments=W.benches.stepwise,
    shell:
        "dithc bench stepwise {params.arguments} --json {output:q} 2>&1 | tee -i {log:q}"


rule measure_automem:
    output:
        f"{W.root}/bench/automem.json",
    log:
        W.log("bench/automem"),
    conda:
        "../envs/dithc.yaml"
    threads: W.jobs.threads("bench")
    resources:
        node_cores=W.jobs.threads("bench"),
        mem_mb=W.jobs.mem_mb("bench"),
        runtime=W.jobs.runtime("bench"),
    params:
        arguments=W.benches.automem,
    shell:
        "dithc bench automem {params.arguments} --json {output:q} 2>&1 | tee -i {log:q}"


# A page of figure 9 alone, without the trainings of the experiment.
rule stepwise:
    input:
        measured=f"{W.root}/bench/stepwise.json",
        paper="config/paper/reference.yaml",
    output:
        html=f"{W.root}/stepwise/report.html",
        figure=f"{W.root}/stepwise/figures/stepwise.png",
    log:
        W.log("stepwise"),
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
        "dithc report --config {params.config:q} --stepwise {input.measured:q} --out {output.html:q} 2>&1 | tee -i {log:q}"


# Likewise of both tiers of memory.
rule automem:
    input:
        f"{W.root}/bench/automem.json",
    output:
        html=f"{W.root}/automem/report.html",
        figure=f"{W.root}/automem/figures/memory.png",
    log:
        W.log("automem"),
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
        "dithc report --config {params.config:q} --automem {input:q} --out {output.html:q} 2>&1 | tee -i {log:q}"
