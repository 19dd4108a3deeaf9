# An example of `machine.prologue`: loads the modules of a site before the command of every rule. Copy and fit it.
# A shell of a job is not interactive: where `module` is not known, its file comes first (Lmod: lmod.sh).
if ! command -v module > /dev/null; then source /etc/profile.d/modules.sh; fi
module purge
module load gcc openmpi
# Some versions of `module` succeed though they found nothing: so check what is needed.
command -v mpiexec
export DITHC_MPIEXEC="$(command -v mpiexec)"
