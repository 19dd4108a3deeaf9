# Figure 9 and what AutoMem gives, measured on this machine: targets of their own, whatever the experiment asks for:
# `snakemake stepwise`, `snakemake automem` (DiT-S/2 where it names no model).


rule measure_stepwise:
    output:
        f"{W.root}/bench/stepwise.json",
    log:
        W.log("bench/stepwise"),
    conda:
        "../envs/dithc.yaml"
    threads: W.threads("bench", CORES)
    resources:
        mem_mb=W.resource("bench", "mem_mb"),
        runtime=W.resource("bench", "runtime"),
    params:
        arguments=W.stepwise,
    shell:
        "dithc bench stepwise {params.arguments} --json {output} 2>&1 | tee -i {log}"


rule measure_automem:
    output:
        f"{W.root}/bench/automem.json",
    log:
        W.log("bench/automem"),
    conda:
        "../envs/dithc.yaml"
    threads: W.threads("bench", CORES)
    resources:
        mem_mb=W.resource("bench", "mem_mb"),
        runtime=W.resource("bench", "runtime"),
    params:
        arguments=W.automem,
    shell:
        "dithc bench automem {params.arguments} --json {output} 2>&1 | tee -i {log}"


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
        mem_mb=W.resource("report", "mem_mb"),
        runtime=W.resource("report", "runtime"),
    params:
        config=W.config,
    shell:
        "dithc report --config {params.config} --stepwise {input.measured} --out {output.html} 2>&1 | tee -i {log}"


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
        mem_mb=W.resource("report", "mem_mb"),
        runtime=W.resource("report", "runtime"),
    params:
        config=W.config,
    shell:
        "dithc report --config {params.config} --automem {input} --out {output.html} 2>&1 | tee -i {log}"
