# Runs workflow/Snakefile from the root of the project.


include: "workflow/Snakefile"


# An included file does not set the default target.
workflow.default_target = "all"
