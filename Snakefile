# The entry of the workflow: one rule file per stage, target rules.


include: "workflow/rules/common.smk"
include: "workflow/rules/synthesize.smk"
include: "workflow/rules/stage.smk"
include: "workflow/rules/tiles.smk"
include: "workflow/rules/latents.smk"
include: "workflow/rules/pretrain.smk"
include: "workflow/rules/finetune.smk"
include: "workflow/rules/sample.smk"
include: "workflow/rules/features.smk"
include: "workflow/rules/fid.smk"
include: "workflow/rules/bench.smk"
include: "workflow/rules/scaling.smk"
include: "workflow/rules/memory.smk"
include: "workflow/rules/sampling.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/paper.smk"


localrules:
    all,
    all_tiles,
    all_latents,
    all_runs,
    all_samples,
    all_fid,
    simulate,
    table1,
    table2,
    table3,
    table4,
    fig7,
    fig8,
    fig9,
    fig10,
    fig11,
    sec56,


rule all:
    default_target: True
    input:
        rules.report.input,
        rules.report.output,


rule all_tiles:
    input:
        [W.path("tiles", name) for name in W.experiment.datasets],


rule all_latents:
    input:
        [W.path("latents", name) for name in W.experiment.datasets],


rule all_runs:
    input:
        [W.final(name) for name in W.experiment.runs],


rule all_samples:
    input:
        [W.path("samples", name) for name in W.experiment.evaluations],


rule all_fid:
    input:
        [W.path("fid", name) for name in W.experiment.scored],


onstart:
    W.start()


onsuccess:
    W.finish()


onerror:
    W.driver.failed()
